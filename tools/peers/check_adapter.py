#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does PEFT, given an adapter that wick wrote, compute the logits that wick computed?

    python tools/peers/check_adapter.py MODEL ADAPTER DUMP [--tolerance 1e-4]

DUMP holds one row: `input_ids` [T] and `logits` [T, V], as a safetensors file or a JSON object.
Prints the largest difference, relative to the largest logit; exit code 1 above the tolerance.
Needs the packages of tools/golden/requirements.txt.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the imports below

import peft
import torch
import transformers
from safetensors.torch import load_file


def read_dump(path):
    if path.suffix == ".json":
        raw = json.loads(path.read_text())
        dump = {k: torch.tensor(raw[k]) for k in ("input_ids", "logits")}
    else:
        dump = load_file(path)
    return dump["input_ids"].long().flatten(), dump["logits"].double()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="model folder in Hugging Face layout")
    parser.add_argument("adapter", type=Path, help="adapter folder in PEFT layout")
    parser.add_argument("dump", type=Path, help="input_ids and logits, .safetensors or .json")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    ids, got = read_dump(args.dump)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(base, args.adapter).eval()
    # PEFT only warns about names it does not know or misses, and would then judge half an adapter.
    saved = load_file(args.adapter / "adapter_model.safetensors")
    held = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    if saved.keys() != held.keys():
        names = sorted(saved.keys() ^ held.keys())
        print(f"PEFT and {args.adapter} disagree on {len(names)} tensors, first {names[0]}")
        return 1

    with torch.no_grad():
        want = model(input_ids=ids[None], use_cache=False).logits[0].double()
    if got.shape != want.shape:
        print(f"logits have shape {list(got.shape)}, PEFT computes {list(want.shape)}")
        return 1
    worst = ((got - want).abs().max() / want.abs().max()).item()
    print(f"max relative difference {worst:.3e} (tolerance {args.tolerance:.0e})")
    return 0 if worst <= args.tolerance else 1  # a NaN is not <= anything


if __name__ == "__main__":
    sys.exit(main())
