#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/optimizers/steps.json: parameters after each of six updates, by optimizer.

adam, adamw and sgd are torch.optim's; adafactor is transformers' (fixed rate, no first moment) and
so MLX's with relative_step off; lion is its paper's; muon is torch.optim.Muon's with the
orthogonalisation in f32 instead of bf16, and MLX's treatment of vectors. All in f32 (lion and muon in
f64 from the same numbers), gradients clipped by nobody.
"""

import json
from pathlib import Path

import torch
from transformers.optimization import Adafactor

OUT = Path(__file__).resolve().parents[2] / "tests" / "golden" / "optimizers" / "steps.json"
SHAPES = [(3, 7), (7, 3), (5,)]
STEPS = 6
LR = 0.01


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = torch.sign(b1 * m + (1 - b1) * p.grad)
                p -= group["lr"] * (update + group["weight_decay"] * p)
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def orthogonal(x, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    turned = x.shape[0] > x.shape[1]
    x = x.T if turned else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if turned else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum, weight_decay, nesterov):
        super().__init__(
            params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        )

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            mu, lr = group["momentum"], group["lr"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - mu)
                update = p.grad.lerp(m, mu) if group["nesterov"] else m.clone()
                rate = lr
                if p.ndim == 2:
                    update = orthogonal(update)
                    rate = lr * max(1, p.shape[0] / p.shape[1]) ** 0.5
                p.mul_(1 - lr * group["weight_decay"]).sub_(update, alpha=rate)


CASES = {
    "adam": (lambda p: torch.optim.Adam(p, lr=LR), {"optimizer": "adam"}),
    "adamw": (
        lambda p: torch.optim.AdamW(p, lr=LR, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
        {"optimizer": "adamw", "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1},
    ),
    "sgd": (lambda p: torch.optim.SGD(p, lr=LR), {"optimizer": "sgd"}),
    "sgd_dampened": (
        lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9, dampening=0.3, weight_decay=0.1),
        {"optimizer": "sgd", "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    ),
    "sgd_nesterov": (
        lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9, nesterov=True),
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": 1},
    ),
    "lion": (
        lambda p: Lion(p, lr=LR, betas=(0.9, 0.99), weight_decay=0.1),
        {"optimizer": "lion", "weight_decay": 0.1},
    ),
    "muon": (
        lambda p: Muon(p, lr=LR, momentum=0.95, weight_decay=0.1, nesterov=True),
        {"optimizer": "muon", "weight_decay": 0.1},
    ),
    "muon_plain": (
        lambda p: Muon(p, lr=LR, momentum=0.9, weight_decay=0.0, nesterov=False),
        {"optimizer": "muon", "momentum": 0.9, "nesterov": 0, "weight_decay": 0.0},
    ),
    "adafactor": (
        lambda p: Adafactor(p, lr=LR, scale_parameter=False, relative_step=False),
        {"optimizer": "adafactor"},
    ),
    "adafactor_scaled": (
        lambda p: Adafactor(p, lr=LR, scale_parameter=True, relative_step=False, weight_decay=0.1),
        {"optimizer": "adafactor", "scale_parameter": True, "weight_decay": 0.1},
    ),
    "adafactor_relative": (
        lambda p: Adafactor(p, scale_parameter=True, relative_step=True, warmup_init=False),
        {"optimizer": "adafactor", "scale_parameter": True, "relative_step": True},
    ),
}


def main():
    torch.manual_seed(0)
    start = [torch.randn(s) * 0.3 for s in SHAPES]
    grads = [[torch.randn(s) for s in SHAPES] for _ in range(STEPS)]
    flat = lambda tensors: [round(float(x), 8) for t in tensors for x in t.flatten()]
    made = {"lr": LR, "shapes": SHAPES, "start": flat(start), "grads": [flat(g) for g in grads]}
    unflat = lambda values: [
        t.reshape(s)
        for t, s in zip(
            torch.tensor(values).split([int(torch.tensor(s).prod()) for s in SHAPES]), SHAPES
        )
    ]
    made["cases"] = {}
    for name, (build, options) in CASES.items():
        exact = name.startswith(("lion", "muon"))
        kind = torch.float64 if exact else torch.float32
        params = [torch.nn.Parameter(t.to(kind)) for t in unflat(made["start"])]
        optimizer = build(params)
        steps = []
        for grad in made["grads"]:
            for p, g in zip(params, unflat(grad)):
                p.grad = g.to(kind)
            optimizer.step()
            steps.append(flat([p.detach() for p in params]))
        made["cases"][name] = {"options": options, "steps": steps}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
