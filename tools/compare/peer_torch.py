#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One case of the comparison in PyTorch, transformers and PEFT; prints one JSON object.

    python tools/compare/peer_torch.py train|prefill|decode|ops|shape|reference FOLDER [--dtype bf16] …

FOLDER is what make_model.py wrote. `ops` gives single operations by the names that `wick bench` has
for them, `shape` a step, a prompt and a token of random weights of a larger shape, `reference`
prints what the others are checked against: ten losses and the likeliest next tokens of both
prompts, in f32.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the imports below

import torch
import transformers

from cases import SHAPES

TOP = 1000  # of the next tokens, for the checks
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def load(args):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        args.folder / "model", dtype=DTYPES[args.dtype], attn_implementation="sdpa")


def load_shape(args):
    """Random weights: a block of them again and again, since only the time is wanted."""
    layers, hidden, heads, kv_heads, ffn, vocab, tied = SHAPES[args.shape]
    config = transformers.Qwen2Config(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        num_key_value_heads=kv_heads, intermediate_size=ffn, vocab_size=vocab,
        tie_word_embeddings=tied, max_position_embeddings=32768)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[args.dtype], attn_implementation="sdpa")
    inverse = model.model.rotary_emb.__class__(config).inv_freq
    model.to_empty(device="cpu")
    model.tie_weights()
    model.model.rotary_emb.inv_freq = inverse
    block = (0.02 * torch.randn(1 << 22)).to(DTYPES[args.dtype])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            flat = weight.view(-1)
            for at in range(0, len(flat), len(block)):
                part = flat[at:at + len(block)]
                part.copy_(block[:len(part)])
            if "norm" in name:
                weight.fill_(1)
    return model


def shape(args, ids):
    """Lines of `wick bench train prefill decode --shape`, timed on this engine."""
    import peft
    model, lines = load_shape(args), []

    def add(what, ms):
        ms = sorted(ms)
        lines.append({"bench": "shapes", "what": f"{args.shape}: {what}", "dtype": args.dtype,
                      "ms": ms[len(ms) // 2]})

    add("prefill, prompt", prefill(args, ids, model.eval())["ms"])
    more = argparse.Namespace(**{**vars(args), "count": 4 * args.count})
    add("decode, token", decode(more, ids, model)["ms"])
    if args.train:
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
        add("train, step", train(args, ids, args.warmup + args.count, model)["ms"])
    return {"lines": lines}


def load_adapted(args):
    import peft
    # PEFT would keep the adapter in f32 beside a bf16 model and convert activations back and forth;
    # --adapter-dtype bf16 is the faster way that it offers.
    return peft.PeftModel.from_pretrained(load(args), args.folder / "adapter", is_trainable=True,
                                          autocast_adapter_dtype=args.adapter_dtype == "f32")


def train(args, ids, steps, model=None):
    model = model or load_adapted(args)
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=args.learning_rate, weight_decay=0.01, fused=True)
    forward = torch.compile(model) if args.compile else model
    losses, ms, forward_ms, backward_ms = [], [], [], []
    for step in range(steps):
        since = time.perf_counter()
        row = torch.tensor(ids["rows"][step % len(ids["rows"])]["ids"])
        logits = forward(input_ids=row[None, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[0].float(), row[1:])
        middle = time.perf_counter()
        loss.backward()
        forward_ms.append(1e3 * (middle - since))
        backward_ms.append(1e3 * (time.perf_counter() - middle))
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        ms.append(1e3 * (time.perf_counter() - since))
    adapter = {str(p.dtype).removeprefix("torch.") for p in parameters}
    return {"ms": ms[args.warmup:], "losses": losses, "adapter_dtype": sorted(adapter),
            "forward_ms": forward_ms[args.warmup:], "backward_ms": backward_ms[args.warmup:]}


@torch.inference_mode()
def prefill(args, ids, model=None):
    model = model or load(args).eval()
    prompt = torch.tensor(ids["prompt512"]["ids"])[None]
    ms = []
    for _ in range(args.warmup + args.count):
        since = time.perf_counter()
        logits = model(input_ids=prompt, use_cache=True, logits_to_keep=1).logits
        top = logits[0, -1].float().topk(TOP).indices.tolist()
        ms.append(1e3 * (time.perf_counter() - since))
    return {"ms": ms[args.warmup:], "first_token": top[0], "top": top}


@torch.inference_mode()
def decode(args, ids, model=None):
    model = model or load(args).eval()
    cache = transformers.DynamicCache(config=model.config)
    fed = torch.tensor(ids["prompt128"]["ids"])[None]
    tokens, ms, top = [], [], []
    for _ in range(1 + args.warmup + args.count):
        since = time.perf_counter()
        logits = model(input_ids=fed, past_key_values=cache, use_cache=True,
                       logits_to_keep=1).logits[0, -1]
        tokens.append(int(logits.argmax()))
        ms.append(1e3 * (time.perf_counter() - since))
        top = top or logits.float().topk(TOP).indices.tolist()
        fed = torch.tensor([[tokens[-1]]])
    return {"ms": ms[1 + args.warmup:], "first_token": tokens[0], "tokens": tokens, "top": top}


@torch.inference_mode()
def ops(args):
    functional, kind, lines = torch.nn.functional, DTYPES[args.dtype], []

    def draw(*shape):
        return torch.randn(shape).to(kind)

    def measure(bench, what, run):
        for _ in range(3):
            run()
        ms, end = [], time.perf_counter() + args.seconds
        while time.perf_counter() < end or len(ms) < 5:
            since = time.perf_counter()
            run()
            ms.append(1e3 * (time.perf_counter() - since))
        ms.sort()
        lines.append({"bench": bench, "what": what, "dtype": args.dtype, "ms": ms[len(ms) // 2],
                      "ms_p10": ms[len(ms) // 10], "ms_p90": ms[len(ms) * 9 // 10]})

    x, w, gain = draw(1024, 1024), draw(1024, 1024), draw(1024)
    measure("ops", "softmax 1024 x 1024", lambda: functional.softmax(x, -1))
    measure("ops", "layer_norm 1024 x 1024", lambda: functional.layer_norm(x, (1024,), gain, gain))
    measure("ops", "rms_norm 1024 x 1024", lambda: functional.rms_norm(x, (1024,), gain, 1e-6))
    measure("ops", "matmul 1024 x 1024 x 1024", lambda: functional.linear(x, w))
    q, k, v = draw(1, 14, 1024, 64), draw(1, 2, 1024, 64), draw(1, 2, 1024, 64)
    measure("ops", "attention 1024, 14/2 heads of 64, causal",
            lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                            enable_gqa=True))
    for size, rank in ((512, 8), (1024, 4), (1024, 8), (1024, 16), (1024, 32), (1024, 64),
                       (2048, 8)):
        x, w, a, b = draw(size, size), draw(size, size), draw(rank, size), draw(size, rank)
        measure("lora", f"forward {size} x {size}, rank {rank}",
                lambda: functional.linear(x, w) + 2.0 * functional.linear(functional.linear(x, a),
                                                                          b))
    return {"lines": lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=["train", "prefill", "decode", "ops", "shape",
                                         "reference"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--adapter-dtype", choices=DTYPES, default="f32")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1, help="for each operation")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--no-train", dest="train", action="store_false")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ids = json.loads((args.folder / "ids.json").read_text())
    if args.case == "train":
        result = train(args, ids, args.warmup + args.count)
    elif args.case == "prefill":
        result = prefill(args, ids)
    elif args.case == "decode":
        result = decode(args, ids)
    elif args.case == "ops":
        result = ops(args)
    elif args.case == "shape":
        result = shape(args, ids)
    else:
        args.warmup, args.count = 0, 1
        result = {"prefill": prefill(args, ids)["top"], "decode": decode(args, ids)["top"],
                  "losses": train(args, ids, 10)["losses"]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
