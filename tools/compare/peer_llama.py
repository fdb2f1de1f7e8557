#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One case of the comparison in llama.cpp, through llama-cpp-python; prints one JSON object.

    python tools/compare/peer_llama.py prefill|decode FOLDER --kind f32|bf16|q8_0|q4_0 …

FOLDER is what make_model.py wrote. The C functions are called as llama.cpp's own benchmark calls
them, without the Python layer above them.
"""

import argparse
import ctypes
import json
import time
from pathlib import Path

import llama_cpp as llama
import numpy as np

VOCAB = 151936


class Context:
    def __init__(self, args, tokens):
        quiet = llama.llama_log_callback(lambda *_: None)
        self.keep = quiet
        llama.llama_log_set(quiet, ctypes.c_void_p(0))
        llama.llama_backend_init()
        model = llama.llama_model_default_params()
        model.use_extra_bufts = not args.plain
        path = str(args.folder / "gguf" / f"{args.kind}.gguf").encode()
        self.model = llama.llama_model_load_from_file(path, model)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot read {path.decode()}")
        context = llama.llama_context_default_params()
        context.n_ctx = tokens
        context.n_batch = context.n_ubatch = 512
        context.n_threads = context.n_threads_batch = args.threads
        context.flash_attn_type = args.flash
        self.context = llama.llama_init_from_model(self.model, context)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")

    def run(self, ids):
        """Runs the tokens and returns the likeliest next one."""
        tokens = (llama.llama_token * len(ids))(*ids)
        status = llama.llama_decode(self.context, llama.llama_batch_get_one(tokens, len(ids)))
        if status != 0:
            raise SystemExit(f"llama_decode returned {status}")
        logits = llama.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (VOCAB,)).argmax())

    def clear(self):
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)


def prefill(args, ids):
    context = Context(args, 1024)
    ms = []
    for _ in range(args.warmup + args.count):
        context.clear()
        since = time.perf_counter()
        token = context.run(ids["prompt512"]["ids"])
        ms.append(1e3 * (time.perf_counter() - since))
    return {"ms": ms[args.warmup:], "first_token": token}


def decode(args, ids):
    context = Context(args, 1024)
    tokens, ms = [context.run(ids["prompt128"]["ids"])], []
    for _ in range(args.warmup + args.count):
        since = time.perf_counter()
        tokens.append(context.run(tokens[-1:]))
        ms.append(1e3 * (time.perf_counter() - since))
    return {"ms": ms[args.warmup:], "first_token": tokens[0], "tokens": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=["prefill", "decode"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=["f32", "bf16", "q8_0", "q4_0"], default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--flash", type=int, choices=[-1, 0, 1], default=-1,
                        help="flash attention: llama.cpp's choice, off, on")
    parser.add_argument("--plain", action="store_true", help="without AMX and repacked weights")
    args = parser.parse_args()
    ids = json.loads((args.folder / "ids.json").read_text())
    result = prefill(args, ids) if args.case == "prefill" else decode(args, ids)
    result["system"] = llama.llama_print_system_info().decode()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
