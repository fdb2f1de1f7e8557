#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What wick forecasts before a run beside what the run takes, for every kind of run.

  tools/forecast_check.py [--wick build/wick] [--device cpu] [--rounds 3] [--updates 1] [--only PATTERNS]

Each round of a kind is `wick plan`, `wick plan --no-try` and `wick train`, one after the other, on the
quick start's data. A ratio is total_seconds over the seconds of the `wick train` behind it, or what was
forecast of memory by `wick train` over the process's largest resident size. Beside them stands the run before, over
the run: how far the machine alone goes from one run to the same one, which no forecast can know. Run
it with nothing else running. --updates multiplies how long the runs are (15 for a GPU).
"""

import argparse
import fnmatch
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

TIME, MEMORY = 0.15, 0.05

# Name, data, updates, and the words of `wick train`.
KINDS = [
    ("lora", "sql", 120, ["--targets", "q_proj,v_proj"]),
    ("all linears", "sql", 100, []),
    ("f32", "sql", 60, ["--dtype", "f32"]),
    ("dora", "sql", 60, ["--fine-tune-type", "dora"]),
    ("pissa", "sql", 80, ["--init", "pissa"]),
    ("full", "sql", 60, ["--fine-tune-type", "full"]),
    ("dpo", "pairs", 60, ["--loss", "dpo"]),
    ("orpo", "pairs", 60, ["--loss", "orpo"]),
    ("simpo", "pairs", 60, ["--loss", "simpo"]),
    ("kto", "labels", 60, ["--loss", "kto"]),
    ("--quantize 8", "sql", 100, ["--quantize", "8"]),
    ("--quantize 4", "sql", 100, ["--quantize", "4"]),
    ("a look every 5", "sql", 60, ["--steps-per-eval", "5"]),
    ("a checkpoint every 4", "sql", 60, ["--save-every", "4"]),
    ("prompts", "sql", 60, ["--steps-per-eval", "20", "--eval-prompts", "{prompts}"]),
    ("kept rows", "short", 200, ["--num-layers", "2", "--prefix-cache", "memory"]),
    ("a sweep of four", "sql", 40, ["--sweep", "lr=1e-4,2e-4,3e-4,4e-4"]),
    ("accumulation", "sql", 40, ["--grad-accumulation-steps", "4"]),
    ("--no-packing", "sql", 60, ["--no-packing"]),
    ("--grad-checkpoint", "sql", 80, ["--grad-checkpoint"]),
]


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is given, wanted a number from 1 on")
    return int(text)


def make_data(folder):
    """Folders sql, pairs, labels and short, and prompts.jsonl."""
    maker = pathlib.Path(__file__).resolve().parent / "demo" / "make_sql.py"
    subprocess.run([sys.executable, maker, "--out", folder / "sql"], check=True, stdout=subprocess.DEVNULL)
    draw = random.Random(0)
    for split in ("train", "valid"):
        rows = [json.loads(line)["messages"][:2] for line in (folder / "sql" / f"{split}.jsonl").open()]
        pairs, labels = [], []
        for question, answer in rows:
            prompt, good = question["content"], answer["content"]
            bad = draw.choice(rows)[1]["content"]
            pairs.append({"prompt": prompt, "chosen": good, "rejected": bad})
            wanted = draw.random() < 0.5
            labels.append({"prompt": prompt, "completion": good if wanted else bad, "label": wanted})
        short = [{"messages": row} for row in rows[:200]]
        for name, made in (("pairs", pairs), ("labels", labels), ("short", short)):
            (folder / name).mkdir(exist_ok=True)
            with (folder / name / f"{split}.jsonl").open("w") as out:
                out.writelines(json.dumps(row) + "\n" for row in made)
    prompts = [json.loads(line)["messages"][0]["content"] for line in (folder / "sql" / "test.jsonl").open()]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts[:4]))


def events(command):
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {run.returncode}:\n{run.stderr}")
    return [json.loads(line) for line in run.stdout.splitlines()]


def forecast(found):
    e = next(e for e in found if e["event"] == "forecast")
    return e["total_seconds"], e["peak_bytes"] + e["process_bytes"]


def measure(args, folder, data, updates, words):
    """Seconds and bytes of three forecasts, and of the run."""
    words = [w.format(prompts=folder / "prompts.jsonl") for w in words]
    words = ["--device", args.device, "--data", str(folder / data), "--iters", str(updates * args.updates), *words]
    plan = forecast(events([args.wick, "plan", "--json", *words]))
    untried = forecast(events([args.wick, "plan", "--no-try", "--json", *words]))
    with tempfile.TemporaryDirectory(dir=folder) as out:
        found = events([args.wick, "train", "--json", "--adapter-path", out, *words])
    done = next(e for e in found if e["event"] == "done")
    return [plan, untried, forecast(found)], (done["seconds"], done["peak_bytes"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--wick", default="build/wick")
    p.add_argument("--device", default="cpu")
    p.add_argument("--rounds", type=positive, default=3)
    p.add_argument("--updates", type=positive, default=1)
    p.add_argument("--only", default="*", help="kinds, with commas: lora,f32,'--quantize*'")
    args = p.parse_args()
    kinds = [k for k in KINDS if any(fnmatch.fnmatch(k[0], only) for only in args.only.split(","))]
    if not kinds:
        p.error(f"--only {args.only}: no kind is called so; there are {', '.join(k[0] for k in KINDS)}")
    if not shutil.which(args.wick):
        p.error(f"--wick {args.wick}: no such program; build it with ./quickstart.sh or ./test.sh, or name another")
    columns = ("plan", "plan --no-try", "train", "the run before")
    within = dict.fromkeys(columns, 0)
    counted = dict.fromkeys(columns, 0)
    memory = []
    print(f"{'kind':22} {'seconds of the runs':26} " + " ".join(f"{c:22}" for c in columns) + " memory")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_data(folder)
        for kind, data, updates, words in kinds:
            runs = [measure(args, folder, data, updates, words) for _ in range(args.rounds)]
            seconds = [run[1][0] for run in runs]
            ratios = {c: [f[i][0] / s for (f, _), s in zip(runs, seconds)] for i, c in enumerate(columns[:3])}
            ratios[columns[3]] = [a / b for a, b in zip(seconds, seconds[1:])]
            sizes = [forecasts[2][1] / process for forecasts, (_, process) in runs]
            memory += sizes
            for c in columns:
                counted[c] += len(ratios[c])
                within[c] += sum(abs(r - 1) <= TIME for r in ratios[c])
            cells = [" ".join(f"{r:.2f}" for r in ratios[c]) for c in columns]
            print(f"{kind:22} {' '.join(f'{s:.2f}' for s in seconds):26} " + " ".join(f"{c:22}" for c in cells) +
                  f" {statistics.median(sizes):.3f}", flush=True)
    print(f"within {TIME:.0%}: " + ", ".join(f"{c} {within[c]} of {counted[c]}" for c in columns) +
          f"; memory within {MEMORY:.0%}: {sum(abs(m - 1) <= MEMORY for m in memory)} of {len(memory)}")


if __name__ == "__main__":
    main()
