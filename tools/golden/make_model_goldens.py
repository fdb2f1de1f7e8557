#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/<case>/: tiny random models and what transformers and PEFT compute with them.

    python tools/golden/make_model_goldens.py              rewrite every case
    python tools/golden/make_model_goldens.py qwen3_tied   rewrite the named cases
    python tools/golden/make_model_goldens.py --check      compute again, compare with the tree

Everything is computed in f32 from the files that were written, so a rounded (bf16, f16) model is
judged by its rounded weights. tests/golden/README.md says what each tensor is.
"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ROW_LENGTHS = [5, 9, 17, 30]
EOS = 2
STEPS = 10
GENERATED = 24
MIN_MARGIN = 5e-2
MIN_DISTINCT = 6
OPTIMIZER = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "clip": 1.0}
MODEL_LIMIT = 400 * 1000


@dataclass
class Case:
    name: str
    model_type: str
    seed: int
    config: dict
    dtype: str = "f32"
    adapter_dtype: str = "f32"
    old_style: bool = False  # config.json with the keys of transformers 4
    old_extra: dict = field(default_factory=dict)  # keys that transformers 5 would not write
    shard_size: str | None = None
    rank: int = 4
    alpha: int = 8
    rslora: bool = False  # scaled by alpha / sqrt(rank)
    targets: list = field(default_factory=lambda: list(ALL_LINEAR))
    layers: list | None = None  # adapters in these layers only
    full: str | None = None  # full training: gradients of "all" weights, or of "some"


SMALL = dict(hidden_size=40, intermediate_size=56, vocab_size=131, num_hidden_layers=2)
TINY = dict(hidden_size=24, intermediate_size=40, vocab_size=97)
WIDE = dict(hidden_size=72, intermediate_size=104, vocab_size=257, num_hidden_layers=2)

CASES = [
    Case(
        "llama_mha_rope3", "llama", 11,
        # Wave lengths 6.3, 30, 140, 664 against 16 and 64: kept, blended, stretched, stretched.
        dict(SMALL, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=5,
             tie_word_embeddings=False, rms_norm_eps=1e-5, max_position_embeddings=512,
             rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0,
                                  low_freq_factor=1.0, high_freq_factor=4.0,
                                  original_max_position_embeddings=64)),
        old_style=True, old_extra={"head_dim": None}, shard_size="60KB", rank=3, alpha=9,
    ),
    Case(
        "llama_gqa_tied_bias", "llama", 12,
        dict(WIDE, num_attention_heads=6, num_key_value_heads=2, head_dim=12,
             tie_word_embeddings=True, attention_bias=True, rms_norm_eps=1e-6,
             max_position_embeddings=128,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        dtype="bf16", adapter_dtype="bf16", rank=5, alpha=5,
    ),
    Case(
        "mistral_window", "mistral", 13,
        dict(SMALL, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1,
             sliding_window=7, tie_word_embeddings=False, rms_norm_eps=1e-5,
             max_position_embeddings=256,
             rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
        dtype="f16", old_style=True, old_extra={"head_dim": None}, rank=4, alpha=16,
        targets=["q_proj", "v_proj", "down_proj"], layers=[1, 2],
    ),
    Case(
        "qwen2_tied", "qwen2", 24,
        dict(SMALL, num_attention_heads=5, num_key_value_heads=1, tie_word_embeddings=True,
             use_sliding_window=False, rms_norm_eps=1e-6, max_position_embeddings=128,
             rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
        # A window that must be ignored: use_sliding_window is false.
        old_style=True, old_extra={"sliding_window": 5, "max_window_layers": 1}, rank=4, alpha=8,
        full="all",
    ),
    Case(
        "qwen3_untied", "qwen3", 15,
        dict(SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             tie_word_embeddings=False, rms_norm_eps=1e-6, max_position_embeddings=128,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        rank=3, alpha=6, full="some",
    ),
    Case(
        "qwen3_tied", "qwen3", 16,
        dict(SMALL, hidden_size=48, num_attention_heads=6, num_key_value_heads=3, head_dim=12,
             vocab_size=257, tie_word_embeddings=True, rms_norm_eps=1e-6,
             max_position_embeddings=128,
             rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
        old_style=True, rank=8, alpha=16, targets=["q_proj", "k_proj", "v_proj", "o_proj"],
    ),
    Case(
        "llama_mlp_bias_linear_rope", "llama", 17,
        dict(TINY, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             tie_word_embeddings=False, mlp_bias=True, rms_norm_eps=1e-5,
             max_position_embeddings=128,
             rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
        old_style=True, rank=3, alpha=4, rslora=True,
        targets=["q_proj", "v_proj", "gate_proj", "down_proj"], full="some",
    ),
    Case(
        "qwen2_window", "qwen2", 18,
        # Full attention below layer 1, a window of 5 from there on.
        dict(TINY, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             tie_word_embeddings=False, use_sliding_window=True, sliding_window=5,
             max_window_layers=1, rms_norm_eps=1e-6, max_position_embeddings=128,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        old_style=True, rank=2, alpha=4, targets=["q_proj", "k_proj", "o_proj", "up_proj"],
    ),
    Case(
        "qwen2_yarn", "qwen2", 19,
        # As Qwen's pages tell people to stretch the context; pairs on both sides and in the ramp.
        dict(TINY, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             tie_word_embeddings=False, rms_norm_eps=1e-6, max_position_embeddings=128,
             rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                  original_max_position_embeddings=32, beta_fast=4.0)),
        old_style=True, rank=2, alpha=4, targets=["q_proj", "k_proj", "o_proj", "up_proj"],
    ),
]


def fill(model, gen):
    """Weights large enough that every term of the model shows in its logits."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=gen)
            if name.endswith("norm.weight") or "layernorm" in name:
                p.copy_(1 + 0.3 * noise)
            elif name.endswith(".bias"):
                p.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                # Small where the head is tied: else each token would predict itself.
                p.copy_(noise * (0.2 if model.config.tie_word_embeddings else 0.4))
            elif "lm_head" in name:
                p.copy_(noise * 2 / p.shape[1] ** 0.5)
            else:
                # Above 1: attention that chooses, blocks that outweigh the embedding.
                p.copy_(noise * 1.5 / p.shape[1] ** 0.5)


def to_old_style(config, extra):
    """The same config as transformers 4 wrote it: rope keys and torch_dtype at the top level."""
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    config.update(extra)
    return config


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_model(case, folder, gen):
    config = AutoConfig.for_model(case.model_type, **case.config, bos_token_id=1, eos_token_id=EOS)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    fill(model, gen)
    model = model.to(DTYPES[case.dtype])
    model.save_pretrained(folder, max_shard_size=case.shard_size or "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    written = json.loads((folder / "config.json").read_text())
    written.pop("transformers_version", None)
    if case.old_style:
        written = to_old_style(written, case.old_extra)
    write_json(folder / "config.json", written)


def load_base(folder, **config):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **config)
    return model.eval()


def write_adapter(case, folder, gen):
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=case.rank, lora_alpha=case.alpha, lora_dropout=0.0,
        target_modules=case.targets, layers_to_transform=case.layers, use_rslora=case.rslora)
    model = peft.get_peft_model(load_base(folder), config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_A" in name:
                p.copy_(torch.randn(p.shape, generator=gen) / p.shape[1] ** 0.5)
            elif "lora_B" in name:
                p.copy_(0.15 * torch.randn(p.shape, generator=gen))
    adapter = folder / "adapter"
    model.save_pretrained(adapter)
    (adapter / "README.md").unlink(missing_ok=True)
    weights = adapter / "adapter_model.safetensors"
    tensors = {k: v.to(DTYPES[case.adapter_dtype]) for k, v in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    written = json.loads((adapter / "adapter_config.json").read_text())
    written["base_model_name_or_path"] = case.name
    written["target_modules"] = sorted(written["target_modules"])
    write_json(adapter / "adapter_config.json", written)


def load_adapter(folder):
    model = peft.PeftModel.from_pretrained(load_base(folder), folder / "adapter", is_trainable=True)
    return model.eval()


def make_rows(vocab, gen):
    """Rows of random ids and, per row, which of its tokens are trained: a suffix with a hole."""
    rows, trained = [], []
    for length in ROW_LENGTHS:
        rows.append(torch.randint(EOS + 1, vocab, (length,), generator=gen))
        mask = torch.zeros(length, dtype=torch.bool)
        mask[max(1, length // 3):] = True
        if length > 8:
            mask[length // 2] = False
        trained.append(mask)
    return rows, trained


def shifted_targets(rows, trained):
    """Per row: the token that follows each position, or -1 where none is trained."""
    out = []
    for ids, mask in zip(rows, trained):
        t = torch.full_like(ids, -1)
        t[:-1] = torch.where(mask[1:], ids[1:], -1)
        out.append(t)
    return out


def batch_loss(model, rows, targets):
    """Mean cross-entropy over all trained tokens of the batch (padded on the right, masked)."""
    width = max(len(r) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    want = torch.full((len(rows), width), -1)
    for i, (r, t) in enumerate(zip(rows, targets)):
        ids[i, : len(r)], mask[i, : len(r)], want[i, : len(r)] = r, 1, t
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), want.flatten(), ignore_index=-1, reduction="mean")


def train(model, rows, targets):
    """STEPS updates over all rows. Returns losses, gradient norms and the first gradients."""
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    opt = torch.optim.AdamW(
        params.values(), lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]),
        eps=OPTIMIZER["eps"], weight_decay=OPTIMIZER["weight_decay"], foreach=False)
    losses, norms, first = [], [], None
    for _ in range(STEPS):
        opt.zero_grad()
        loss = batch_loss(model, rows, targets)
        loss.backward()
        if first is None:
            first = {n: p.grad.clone() for n, p in params.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), OPTIMIZER["clip"]).item())
        losses.append(loss.item())
        opt.step()
    return torch.tensor(losses), torch.tensor(norms), first, params


@torch.no_grad()
def greedy(model, prompt):
    """GENERATED winners by full forward passes, and the smallest lead of a winner."""
    ids, margin = prompt.tolist(), float("inf")
    for _ in range(GENERATED):
        top = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        ids.append(top.indices[0].item())
    return torch.tensor(ids[len(prompt):]), margin


def find_prompt(base, adapted, vocab, gen):
    """A prompt whose winners lead clearly, repeat little, never stop, and change with the adapter."""
    def clear(ids, margin):
        return margin >= MIN_MARGIN and len(set(ids.tolist())) >= MIN_DISTINCT and EOS not in ids

    for _ in range(500):
        prompt = torch.randint(EOS + 1, vocab, (6,), generator=gen)
        plain, margin = greedy(base, prompt)
        if not clear(plain, margin):
            continue
        tuned, margin_tuned = greedy(adapted, prompt)
        if clear(tuned, margin_tuned) and not torch.equal(plain, tuned):
            return prompt, plain, tuned, margin, margin_tuned
    raise SystemExit("no prompt with clear winners; choose another seed")


def short(name):
    """A parameter's name as PEFT writes it to disk (without the adapter's name)."""
    return name.replace(".default", "")


def expect(case, folder, gen):
    """All expected tensors and metadata, from the files in `folder`."""
    rows, trained = make_rows(case.config["vocab_size"], gen)
    targets = shifted_targets(rows, trained)
    longest = max(range(len(rows)), key=lambda i: len(rows[i]))
    starts = torch.cumsum(torch.tensor([0] + ROW_LENGTHS), 0)
    out = {"input_ids": torch.cat(rows), "targets": torch.cat(targets), "row_starts": starts}

    base, adapted = load_base(folder), load_adapter(folder)
    with torch.no_grad():
        one = rows[longest][None]
        out["logits"] = base(input_ids=one, use_cache=False).logits[0]
        out["logits_adapter"] = adapted(input_ids=one, use_cache=False).logits[0]
        out["loss_base"] = batch_loss(base, rows, targets)
        out["loss"] = batch_loss(adapted, rows, targets)
    prompt, plain, tuned, margin, margin_tuned = find_prompt(
        base, adapted, case.config["vocab_size"], gen)
    out.update(prompt=prompt, greedy=plain, greedy_adapter=tuned)

    losses, norms, first, params = train(adapted, rows, targets)
    out.update(losses=losses, grad_norms=norms)
    out.update({"grad." + short(n): g for n, g in first.items()})
    out.update({"final." + short(n): p.detach() for n, p in params.items()})

    if case.full:
        losses, norms, first, _ = train(base, rows, targets)
        out.update(full_losses=losses, full_grad_norms=norms)
        some = ("norm", "embed_tokens", "lm_head", "layers.1.self_attn.q_proj", ".bias")
        out.update({"full_grad." + n: g for n, g in first.items()
                    if case.full == "all" or any(s in n for s in some)})

    meta = {
        "case": case.name, "model_type": case.model_type, "seed": case.seed,
        "weights_dtype": case.dtype, "adapter_dtype": case.adapter_dtype,
        "config_style": "transformers 4" if case.old_style else "transformers 5",
        "rank": case.rank, "alpha": case.alpha,
        "scale": case.alpha / (case.rank**0.5 if case.rslora else case.rank),
        "targets": case.targets, "layers": case.layers, "dropout": 0.0,
        "optimizer": dict(OPTIMIZER, name="adamw", steps=STEPS),
        "row_lengths": ROW_LENGTHS, "logits_row": longest,
        "trained_tokens": int((out["targets"] >= 0).sum()),
        "greedy_margin": round(margin, 4), "greedy_adapter_margin": round(margin_tuned, 4),
        "full": case.full,
        "made_with": {"torch": torch.__version__.split("+")[0],
                      "transformers": transformers.__version__, "peft": peft.__version__},
    }
    for k, v in out.items():
        v = v.contiguous()
        out[k] = v.to(torch.float32) if v.is_floating_point() else v.to(torch.int32)
    return out, meta


def make(case, folder):
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    gen = torch.Generator().manual_seed(case.seed)
    write_model(case, folder, gen)
    write_adapter(case, folder, gen)
    tensors, meta = expect(case, folder, gen)
    save_file(tensors, folder / "expected.safetensors")
    write_json(folder / "expected.json", meta)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    losses = tensors["losses"]
    print(f"{case.name}: {size / 1000:.0f} kB, loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
          f"norm {tensors['grad_norms'][0]:.3f}, margins {meta['greedy_margin']} "
          f"{meta['greedy_adapter_margin']}")
    if size > MODEL_LIMIT:
        raise SystemExit(f"{case.name} takes {size} bytes, more than {MODEL_LIMIT}")


def check(case, folder):
    """Whether the tree's case is what this machine's transformers and PEFT compute again."""
    with tempfile.TemporaryDirectory() as tmp:
        fresh = Path(tmp) / case.name
        make(case, fresh)
        worst = 0.0
        for path in sorted(fresh.rglob("*.safetensors")):
            new, old = load_file(path), load_file(folder / path.relative_to(fresh))
            if new.keys() != old.keys():
                print(f"{case.name}: {path.name} holds other tensors")
                return False
            for k in new:
                a, b = new[k].double(), old[k].double()
                scale = max(1e-30, b.abs().max().item())
                worst = max(worst, (a - b).abs().max().item() / scale)
    print(f"{case.name}: largest relative difference {worst:.2e}")
    return worst < 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names; all when left out")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    unknown = set(args.cases) - {c.name for c in CASES}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    chosen = [c for c in CASES if not args.cases or c.name in args.cases]
    if args.check:
        return 0 if all([check(c, GOLDEN / c.name) for c in chosen]) else 1
    for case in chosen:
        make(case, GOLDEN / case.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
