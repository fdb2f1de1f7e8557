#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/preference/: what DPO, SimPO, ORPO, KTO and distillation compute in torch and
PEFT on one of the tiny models of tests/golden.

    python tools/golden/make_preference_goldens.py           rewrite the files
    python tools/golden/make_preference_goldens.py --check   compute again, compare with the tree

The formulas are TRL's (DPOTrainer with loss_type sigmoid, CPOTrainer with loss_type simpo and
cpo_alpha 0, ORPOTrainer, KTOTrainer), written down again here, in f32. tests/golden/README.md says
what each tensor is.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from make_model_goldens import GOLDEN, OPTIMIZER, STEPS, load_adapter, load_base, short
from safetensors.torch import load_file, save_file

OUT = GOLDEN / "preference"
MODEL, TEACHER = "qwen2_tied", "qwen3_untied"
PROMPTS, CHOSEN, REJECTED = [3, 7, 1, 11, 5], [4, 9, 2, 13, 1], [6, 3, 5, 8, 7]
SETTINGS = {
    "dpo": dict(beta=0.3, label_smoothing=0.1),
    "simpo": dict(beta=2.0, gamma=0.5, label_smoothing=0.0),
    "orpo": dict(beta=0.25),
    "kto": dict(beta=0.3, desirable=1.3, undesirable=0.8),
    "distill": dict(temperature=1.7, alpha=0.6),
}


def make_rows(vocab):
    gen = torch.Generator().manual_seed(77)

    def ids(n):
        return torch.randint(3, vocab, (n,), generator=gen)

    return [(ids(p), ids(c), ids(r)) for p, c, r in zip(PROMPTS, CHOSEN, REJECTED)]


def token_logps(model, prompt, answer):
    """log p of every token but the first, and which of them are of the answer."""
    ids = torch.cat([prompt, answer])
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
    logp = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]
    return logp, torch.arange(1, len(ids)) >= len(prompt)


def answer_logp(model, prompt, answer, mean=False):
    logp, mask = token_logps(model, prompt, answer)
    return logp[mask].mean() if mean else logp[mask].sum()


def both(model, rows, mean=False):
    chosen = torch.stack([answer_logp(model, p, c, mean) for p, c, _ in rows])
    rejected = torch.stack([answer_logp(model, p, r, mean) for p, _, r in rows])
    return chosen, rejected


def sigmoid_loss(x, smoothing):
    return -F.logsigmoid(x) * (1 - smoothing) - F.logsigmoid(-x) * smoothing


def dpo(model, reference, rows, s):
    chosen, rejected = both(model, rows)
    margins = (chosen - reference["chosen"]) - (rejected - reference["rejected"])
    return sigmoid_loss(s["beta"] * margins, s["label_smoothing"]).mean()


def simpo(model, reference, rows, s):
    chosen, rejected = both(model, rows, mean=True)
    x = s["beta"] * (chosen - rejected - s["gamma"] / s["beta"])
    return sigmoid_loss(x, s["label_smoothing"]).mean()


def orpo(model, reference, rows, s):
    chosen, rejected = both(model, rows, mean=True)
    log_odds = (chosen - rejected) - (
        torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    # Over all tokens of all chosen sequences, the prompts' too.
    nll = -torch.cat([token_logps(model, p, c)[0] for p, c, _ in rows]).mean()
    return nll - (s["beta"] * F.logsigmoid(log_odds)).mean()


def unpaired(rows):
    return [(p, c) for p, c, _ in rows] + [(p, r) for p, _, r in rows]


def mismatched(rows):
    single = unpaired(rows)
    answers = [a for _, a in single]
    return list(zip([p for p, _ in single], answers[-1:] + answers[:-1]))


def kto(model, reference, rows, s):
    with torch.no_grad():
        policy = torch.stack([answer_logp(model, p, a) for p, a in mismatched(rows)])
        kl = (policy - reference["mismatched"]).mean().clamp(min=0)
    chosen, rejected = both(model, rows)
    wanted = 1 - torch.sigmoid(s["beta"] * (chosen - reference["chosen"] - kl))
    unwanted = 1 - torch.sigmoid(s["beta"] * (kl - (rejected - reference["rejected"])))
    return torch.cat([s["desirable"] * wanted, s["undesirable"] * unwanted]).mean()


def distill(model, reference, rows, s):
    """On prompt + chosen: alpha T² KL(teacher || student) + (1 - alpha) CE, mean over tokens."""
    t, terms = s["temperature"], []
    for (prompt, answer, _), teacher in zip(rows, reference["teacher_logits"]):
        ids = torch.cat([prompt, answer])
        first = max(1, len(prompt))
        logits = model(input_ids=ids[None], use_cache=False).logits[0, first - 1:-1]
        p = torch.log_softmax(logits / t, -1)
        q = torch.log_softmax(teacher[first - 1:-1] / t, -1)
        kl = (q.exp() * (q - p)).sum(-1)
        ce = -torch.log_softmax(logits, -1).gather(1, ids[first:, None])[:, 0]
        terms.append(s["alpha"] * t * t * kl + (1 - s["alpha"]) * ce)
    return torch.cat(terms).mean()


LOSSES = dict(dpo=dpo, simpo=simpo, orpo=orpo, kto=kto, distill=distill)


def train(kind, reference, rows):
    model = load_adapter(GOLDEN / MODEL)
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    opt = torch.optim.AdamW(
        params.values(), lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]),
        eps=OPTIMIZER["eps"], weight_decay=OPTIMIZER["weight_decay"], foreach=False)
    losses, norms, out = [], [], {}
    for step in range(STEPS):
        opt.zero_grad()
        loss = LOSSES[kind](model, reference, rows, SETTINGS[kind])
        loss.backward()
        if step == 0:
            out.update({f"{kind}.grad.{short(n)}": p.grad.clone() for n, p in params.items()})
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), OPTIMIZER["clip"]).item())
        losses.append(loss.item())
        opt.step()
    out[f"{kind}.losses"], out[f"{kind}.grad_norms"] = torch.tensor(losses), torch.tensor(norms)
    out.update({f"{kind}.final.{short(n)}": p.detach() for n, p in params.items()})
    return out


def expect():
    base, teacher = load_base(GOLDEN / MODEL), load_base(GOLDEN / TEACHER)
    rows = make_rows(base.config.vocab_size)
    with torch.no_grad():
        chosen, rejected = both(base, rows)
        reference = dict(
            chosen=chosen, rejected=rejected,
            mismatched=torch.stack([answer_logp(base, p, a) for p, a in mismatched(rows)]),
            teacher_logits=[
                teacher(input_ids=torch.cat([p, c])[None], use_cache=False).logits[0]
                for p, c, _ in rows])
        policy = load_adapter(GOLDEN / MODEL)
        policy_chosen, policy_rejected = both(policy, rows)
    flat = [part for row in rows for part in row]
    out = {
        "ids": torch.cat(flat).int(),
        "lengths": torch.tensor([len(part) for part in flat]).int(),
        "reference.chosen": chosen, "reference.rejected": rejected,
        "policy.chosen": policy_chosen, "policy.rejected": policy_rejected,
    }
    for kind in LOSSES:
        out.update(train(kind, reference, rows))
    meta = dict(model=MODEL, teacher=TEACHER, settings=SETTINGS, optimizer=OPTIMIZER)
    return {k: v.contiguous() for k, v in out.items()}, meta


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    tensors, meta = expect()
    if not args.check:
        OUT.mkdir(exist_ok=True)
        save_file(tensors, OUT / "pairs.safetensors")
        (OUT / "pairs.json").write_text(json.dumps(meta, indent=2, sort_keys=True) + "\n")
        return 0
    held = load_file(OUT / "pairs.safetensors")
    worst = max((held[k].float() - v.float()).abs().max().item() for k, v in tensors.items())
    good = held.keys() == tensors.keys() and worst < 1e-4
    print(f"{'same' if good else 'DIFFERENT'}: largest difference {worst:.1e}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
