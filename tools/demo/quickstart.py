#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The talking parts of quickstart.sh.

    quickstart.py ask WICK OUT [FLAG …]         puts a few test questions to `WICK generate`
    quickstart.py numbers OUT before|after      prints what `wick eval` and `wick train` measured
"""

import json
import subprocess
import sys
from pathlib import Path

ASKED = 4


def rows(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def event(path, name):
    return [r for r in rows(path) if r.get("event") == name][-1]


def ask(wick, out, *flags):
    # Different kinds of statement, so that the eye does not read the same shape four times.
    shapes, prompts = set(), []
    for row in rows(Path(out) / "sql/test.jsonl"):
        question, answer = (m["content"] for m in row["messages"])
        shape = " ".join(w for w in answer.split() if w.isupper())[:20]
        if shape not in shapes and len(prompts) < ASKED:
            shapes.add(shape)
            prompts.append((question, answer))
    for question, answer in prompts:
        command = [wick, "generate", "--quiet", "--prompt", "-", "--max-tokens", "64", *flags]
        text = subprocess.run(command, input=question, capture_output=True, check=True, text=True).stdout
        said = " ".join(text.split())
        print("\n   " + question.replace("\n", "\n   "))
        print(f"   {'✓' if said == answer else '✗'} {said}")


def numbers(out, when):
    out = Path(out)
    for name, what in (("test", "unseen questions about tables, exact SQL"),
                       ("base", "the base model's own kind of questions")):
        parts = []
        for moment in ("before", "after")[: 1 if when == "before" else 2]:
            r = event(out / f"{name}_{moment}.jsonl", "eval")
            parts.append(f"{r['exact_match']:6.1%} ({r['matches']} of {r['match_rows']}) {moment}")
        print(f"   {what:<42}{', '.join(parts)}")
    if when == "after":
        done, forecast = event(out / "train.jsonl", "done"), event(out / "train.jsonl", "forecast")
        print(f"   {'training':<42}{done['seconds']:.0f} s, {done['tokens'] / done['seconds']:,.0f} tokens/s")
        print(f"   {'peak memory, measured and forecast':<42}"
              f"{done['peak_bytes'] / 1e6:.1f} MB, {(forecast['peak_bytes'] + forecast['process_bytes']) / 1e6:.1f} MB")


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        ask(*sys.argv[2:])
    else:
        numbers(*sys.argv[2:])
