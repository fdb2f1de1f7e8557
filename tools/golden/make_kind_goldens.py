#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/kinds/<case>/: kinds of adapter on the golden models, as PEFT computes them.

    python tools/golden/make_kind_goldens.py            rewrite every case
    python tools/golden/make_kind_goldens.py dora       rewrite the named cases

A case is an adapter folder as PEFT saves it and, in expected.safetensors, logits, the gradients of
the first step, ten losses of AdamW and what the parameters are then, all in f32. The model is one
of make_model_goldens.py's; expected.json names it.
"""

import argparse
import json
import re
import shutil
import sys
from dataclasses import dataclass, field

import peft
import torch
import transformers
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import save_file

import make_model_goldens as base

KINDS = base.GOLDEN / "kinds"
LIMIT = 300 * 1000


@dataclass
class Case:
    name: str
    model: str  # a case of make_model_goldens.py
    seed: int
    config: dict
    lora_plus: float = 1.0
    weight_decay: float = base.OPTIMIZER["weight_decay"]
    dropout: float = 0.0
    pad: int | None = None  # the model's pad_token_id, a token of the rows
    notes: dict = field(default_factory=dict)


CASES = [
    Case("patterns", "qwen2_window", 31,
         dict(r=3, lora_alpha=6, use_rslora=True, target_modules=r".*\.(q|v|up|down)_proj",
              exclude_modules=r".*\.2\.mlp\.down_proj",
              rank_pattern={"q_proj": 5, r".*\.1\.mlp\..*": 2}, alpha_pattern={"up_proj": 11})),
    Case("lora_plus", "qwen2_window", 32,
         dict(r=2, lora_alpha=4, target_modules=["q_proj", "o_proj", "gate_proj"],
              layers_to_transform=[0, 2]), lora_plus=4.0),
    # Of vectors PEFT's LoRA+ lets some decay and others not.
    Case("lora_plus_vectors", "qwen2_window", 48,
         dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["model.norm"],
              bias="lora_only"), lora_plus=4.0, weight_decay=0.0),
    Case("dora", "llama_mlp_bias_linear_rope", 33,
         dict(r=3, lora_alpha=6, use_dora=True, target_modules="all-linear")),
    Case("dora_some", "qwen2_window", 34,
         dict(r=2, lora_alpha=8, use_dora=True, use_rslora=True,
              target_modules=["k_proj", "o_proj", "up_proj"])),
    Case("dora_dropout", "qwen2_window", 35,
         dict(r=2, lora_alpha=4, use_dora=True,
              target_modules=["q_proj", "v_proj", "down_proj"]), dropout=0.25),
    Case("pissa", "qwen2_window", 36,
         dict(r=3, lora_alpha=5, init_lora_weights="pissa",
              target_modules=["q_proj", "k_proj", "v_proj", "down_proj"])),
    # More than k_proj has singular vectors: PEFT's pair is smaller than r, its factor is alpha / r.
    Case("pissa_most", "qwen2_window", 51,
         dict(r=16, lora_alpha=8, init_lora_weights="pissa", target_modules=["q_proj", "k_proj"])),
    Case("embedding", "qwen2_tied", 37,
         dict(r=3, lora_alpha=6, target_modules=["embed_tokens", "v_proj"])),
    # torch gives the padding token's row no gradient, also where a row of data has that token.
    Case("embedding_pad", "qwen2_window", 49,
         dict(r=2, lora_alpha=6, target_modules=["embed_tokens", "q_proj"]), pad=61),
    Case("whole_pad", "qwen2_tied", 50,
         dict(r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens"]),
         pad=33),
    Case("head", "llama_mlp_bias_linear_rope", 40,
         dict(r=3, lora_alpha=6, target_modules=["lm_head", "gate_proj"])),
    Case("head_tied", "qwen2_tied", 41,
         dict(r=2, lora_alpha=6, target_modules=["lm_head", "embed_tokens", "q_proj"])),
    Case("tokens", "qwen2_window", 42,
         dict(r=2, lora_alpha=4, target_modules=["q_proj"],
              trainable_token_indices=[5, 40, 17, 96])),
    Case("tokens_head", "qwen2_window", 47,
         dict(r=2, lora_alpha=4, target_modules=["q_proj", "lm_head"],
              trainable_token_indices=[5, 96, 17])),
    Case("tokens_tied", "qwen2_tied", 43,
         dict(r=2, lora_alpha=4, target_modules=["q_proj"],
              trainable_token_indices=[130, 3, 64, 20])),
    Case("bias_all", "qwen2_window", 44,
         dict(r=2, lora_alpha=4, target_modules=["q_proj", "o_proj"], bias="all")),
    Case("bias_lora_only", "llama_mlp_bias_linear_rope", 45,
         dict(r=2, lora_alpha=4, target_modules=["gate_proj", "down_proj"], bias="lora_only")),
    Case("bias_dora", "qwen2_window", 46,
         dict(r=2, lora_alpha=4, use_dora=True, target_modules=["k_proj", "v_proj"],
              bias="lora_only")),
    Case("whole", "llama_mlp_bias_linear_rope", 38,
         dict(r=2, lora_alpha=4, target_modules=["q_proj"],
              modules_to_save=["lm_head", "embed_tokens", "input_layernorm", "model.norm"])),
    Case("whole_tied", "qwen3_tied", 39,
         dict(r=2, lora_alpha=4, target_modules=["k_proj"],
              modules_to_save=["embed_tokens", "q_norm"])),
]


def philox(key, low, high):
    mask = 0xFFFFFFFF
    c = [low & mask, low >> 32, high & mask, high >> 32]
    k0, k1 = key & mask, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & mask, (p0 >> 32) ^ c[3] ^ k1, p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c


def name_key(name):
    h = 1469598103934665603
    for byte in name.encode():
        h = ((h ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return h


class FixedDropout(torch.nn.Module):
    """wick's dropout with the key 0 for every token: a mask of the module and the column alone."""

    def __init__(self, module, width, p):
        super().__init__()
        site = name_key(module)
        words = [philox(0, d // 4, site)[d % 4] for d in range(width)]
        keep = [(w >> 8) / 16777216.0 >= p for w in words]
        self.register_buffer("factor", torch.tensor(keep).float() / (1 - p), persistent=False)

    def forward(self, x):
        return x * self.factor


def fix_dropout(model, p):
    for name, module in model.named_modules():
        if hasattr(module, "lora_dropout") and "default" in module.lora_dropout:
            plain = name.removeprefix("base_model.model.")
            module.lora_dropout["default"] = FixedDropout(plain, module.in_features, p)


def short(name):
    """A parameter's name as PEFT writes it to disk."""
    name = name.replace(".modules_to_save.default", "").replace(".default", "")
    return re.sub(r"lora_magnitude_vector\.weight$", "lora_magnitude_vector", name)


def load_base(case, model_folder):
    return base.load_base(model_folder, pad_token_id=case.pad)


def write_adapter(case, model_folder, folder, gen):
    config = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=case.dropout, **case.config)
    model = peft.get_peft_model(load_base(case, model_folder), config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            noise = torch.randn(p.shape, generator=gen)
            if "modules_to_save" in name or "trainable_tokens" in name:
                p.add_(0.05 * noise)
            elif "magnitude" in name:
                p.mul_(1 + 0.1 * noise)
            elif config.init_lora_weights == "pissa":
                p.add_(0.03 * noise)
            elif "lora_A" in name or "embedding_A" in name:
                p.copy_(noise / p.shape[1] ** 0.5)
            else:
                p.copy_(0.15 * noise)
    model.save_pretrained(folder / "adapter", save_embedding_layers=False)
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    path = folder / "adapter" / "adapter_config.json"
    written = json.loads(path.read_text())
    base.write_json(path, dict(written, base_model_name_or_path=case.model))


def train(case, model, rows, targets):
    opt = base.OPTIMIZER
    common = dict(lr=opt["lr"], betas=tuple(opt["betas"]), eps=opt["eps"])
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if case.lora_plus != 1.0:
        optimizer = create_loraplus_optimizer(
            model, torch.optim.AdamW, loraplus_lr_ratio=case.lora_plus,
            loraplus_weight_decay=case.weight_decay, foreach=False, **common)
    else:
        optimizer = torch.optim.AdamW(
            params.values(), weight_decay=case.weight_decay, foreach=False, **common)
    losses, norms, first = [], [], None
    for _ in range(base.STEPS):
        optimizer.zero_grad()
        loss = base.batch_loss(model, rows, targets)
        loss.backward()
        if first is None:
            first = {n: p.grad.clone() for n, p in params.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), opt["clip"]).item())
        losses.append(loss.item())
        optimizer.step()
    return torch.tensor(losses), torch.tensor(norms), first, params


def make(case):
    folder, model_folder = KINDS / case.name, base.GOLDEN / case.model
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    gen = torch.Generator().manual_seed(case.seed)
    write_adapter(case, model_folder, folder, gen)
    model = peft.PeftModel.from_pretrained(
        load_base(case, model_folder), folder / "adapter", is_trainable=True).eval()
    vocab = model.config.vocab_size
    rows, trained = base.make_rows(vocab, gen)
    if case.pad is not None:
        for ids in rows:
            ids[1::3] = case.pad
    targets = base.shifted_targets(rows, trained)
    longest = max(range(len(rows)), key=lambda i: len(rows[i]))
    out = {"input_ids": torch.cat(rows), "targets": torch.cat(targets),
           "row_starts": torch.cumsum(torch.tensor([0] + base.ROW_LENGTHS), 0)}
    with torch.no_grad():
        out["logits"] = model(input_ids=rows[longest][None], use_cache=False).logits[0]
    if case.dropout > 0:
        fix_dropout(model, case.dropout)
        model.train()
    losses, norms, first, params = train(case, model, rows, targets)
    out.update(losses=losses, grad_norms=norms)
    out.update({"grad." + short(n): g for n, g in first.items()})
    out.update({"final." + short(n): p.detach() for n, p in params.items()})
    for k, v in out.items():
        v = v.contiguous()
        out[k] = v.to(torch.float32) if v.is_floating_point() else v.to(torch.int32)
    save_file(out, folder / "expected.safetensors")
    base.write_json(folder / "expected.json", {
        "case": case.name, "model": case.model, "seed": case.seed, "lora_plus": case.lora_plus,
        **({} if case.pad is None else {"pad_token_id": case.pad}),
        "optimizer": dict(base.OPTIMIZER, name="adamw", steps=base.STEPS,
                          weight_decay=case.weight_decay),
        "logits_row": longest, "trained_tokens": int((out["targets"] >= 0).sum()),
        "made_with": {"torch": torch.__version__.split("+")[0],
                      "transformers": transformers.__version__, "peft": peft.__version__}})
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{case.name}: {size / 1000:.0f} kB, loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
          f"norm {norms[0]:.3f}")
    if size > LIMIT:
        raise SystemExit(f"{case.name} takes {size} bytes, more than {LIMIT}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names; all when left out")
    args = parser.parse_args()
    unknown = set(args.cases) - {c.name for c in CASES}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for case in CASES:
        if not args.cases or case.name in args.cases:
            make(case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
