#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One case of the comparison in MLX and mlx-lm, on the CPU; prints one JSON object.

    python tools/compare/peer_mlx.py train|prefill|decode FOLDER [--dtype bf16] …

FOLDER is what make_model.py wrote. The training step is compiled, as mlx-lm's own loop has it.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model

DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16}


def load(args):
    model, _ = load_model(args.folder / "model")
    model.set_dtype(DTYPES[args.dtype])
    mx.eval(model.parameters())
    return model


def attach(model, adapter):
    """The adapter of PEFT's files, in mlx-lm's transposed form."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    places = {**{f"{x}_proj": "self_attn" for x in "qkvo"},
              **{f"{x}_proj": "mlp" for x in ("gate", "up", "down")}}
    model.freeze()
    linear_to_lora_layers(model, len(model.layers), {
        "rank": config["r"], "scale": config["lora_alpha"] / config["r"], "dropout": 0.0,
        "keys": [f"{places[name]}.{name}" for name in config["target_modules"]]})
    weights = []
    for name, value in mx.load(str(adapter / "adapter_model.safetensors")).items():
        stem, side = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".", 1)
        weights.append((f"{stem}.{side.lower()}", mx.contiguous(value.T)))
    model.load_weights(weights, strict=False)
    if len(tree_flatten(model.trainable_parameters())) != len(weights):
        raise SystemExit("the adapter does not fit mlx-lm's model")


def train(args, ids):
    model = load(args)
    attach(model, args.folder / "adapter")
    model.train()
    optimizer = optim.AdamW(learning_rate=args.learning_rate, weight_decay=0.01,
                            bias_correction=True)

    def loss_of(model, row):
        logits = model(row[None, :-1])[0].astype(mx.float32)
        return nn.losses.cross_entropy(logits, row[1:]).mean()

    state = [model.state, optimizer.state]
    value_and_grad = nn.value_and_grad(model, loss_of)

    @partial(mx.compile, inputs=state, outputs=state)
    def step(row):
        loss, gradients = value_and_grad(model, row)
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimizer.update(model, gradients)
        return loss

    losses, ms = [], []
    for index in range(args.warmup + args.count):
        since = time.perf_counter()
        loss = step(mx.array(ids["rows"][index]["ids"]))
        mx.eval(loss, state)
        losses.append(loss.item())
        ms.append(1e3 * (time.perf_counter() - since))
    return {"ms": ms[args.warmup:], "losses": losses}


def prefill(args, ids):
    model = load(args)
    prompt = mx.array(ids["prompt512"]["ids"])[None]
    ms = []
    for _ in range(args.warmup + args.count):
        since = time.perf_counter()
        cache = make_prompt_cache(model)
        # As mlx-lm's generate: all but the last token for the cache alone.
        model(prompt[:, :-1], cache=cache)
        mx.eval([c.state for c in cache])
        token = model(prompt[:, -1:], cache=cache)[0, -1].argmax().item()
        ms.append(1e3 * (time.perf_counter() - since))
    return {"ms": ms[args.warmup:], "first_token": token}


def decode(args, ids):
    model = load(args)
    cache = make_prompt_cache(model)
    fed, tokens, ms = mx.array(ids["prompt128"]["ids"])[None], [], []
    for _ in range(1 + args.warmup + args.count):
        since = time.perf_counter()
        tokens.append(model(fed, cache=cache)[0, -1].argmax().item())
        ms.append(1e3 * (time.perf_counter() - since))
        fed = mx.array([[tokens[-1]]])
    return {"ms": ms[1 + args.warmup:], "first_token": tokens[0], "tokens": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=["train", "prefill", "decode"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    ids = json.loads((args.folder / "ids.json").read_text())
    print(json.dumps({"train": train, "prefill": prefill, "decode": decode}[args.case](args, ids)))


if __name__ == "__main__":
    main()
