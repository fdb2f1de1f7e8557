#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of the comparison in turn and writes what was measured; see tools/compare.sh.

Rounds are outermost within a group, so that each engine meets the same minutes of the machine. A
time counts only where the result was right: ten losses against f32 PyTorch's, or the first greedy
token among the likeliest of f32 PyTorch. After every process the state is on disk, and --resume
goes on from there; --add brings what was measured apart into results that are there.
"""

import argparse
import datetime
import fnmatch
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cases as case_list
from machine import full_name, slug
from process import describe_machine, run_process

FORMAT = 1
# Largest relative difference of a loss, and how deep in the reference's list a first token may lie.
LOSS_TOLERANCE = {"f32": 1e-4, "bf16": 1e-2, "8": 2e-2, "4": 1e-1}
TOKEN_DEPTH = {"f32": 1, "bf16": 4, "8": 4, "4": 1000}


def say(text):
    print(text, flush=True)


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    part.replace(path)


def git(*words):
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def versions(wick):
    found = {"wick": subprocess.run([wick, "--version"], capture_output=True, text=True,
                                    check=False).stdout.strip().removeprefix("wick ")}
    for name in ("torch", "transformers", "peft", "mlx", "mlx-lm", "llama-cpp-python", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    found["python"] = sys.version.split()[0]
    return found


def wick_device(wick):
    done = subprocess.run([wick, "devices", "--json"], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        device = json.loads(line)
        if device["name"] == "cpu":
            return device
    raise SystemExit("compare: wick devices names no cpu")


def reference(setting, rungs):
    """What results are checked against, made once per model by PyTorch in f32."""
    path = setting.folder / "reference.json"
    if not path.exists():
        say("reference: PyTorch in f32, ten steps and both prompts")
        done = run_process([sys.executable, case_list.HERE / "peer_torch.py", "reference",
                            setting.folder, "--threads", str(setting.threads)],
                           rungs[0].environment, 600)
        if done.code != 0:
            raise SystemExit(f"compare: the reference {done.why()}")
        write_json(path, case_list.last_object(done.output, setting))
    return json.loads(path.read_text())


def check(case, result, wanted):
    """None where the result is right, else what is wrong with it."""
    if case.group == "train":
        got = result.get("losses", [])
        pairs = list(zip(got, wanted["losses"]))
        worst = max((abs(a - b) / abs(b) for a, b in pairs), default=float("inf"))
        result["loss_difference"] = worst
        limit = LOSS_TOLERANCE[case.bits]
        return None if worst <= limit else f"losses differ by {worst:.1e}, allowed {limit:.0e}"
    depth = TOKEN_DEPTH[case.bits]
    likeliest = wanted[case.group][:depth]
    token = result.get("first_token")
    result["first_token_place"] = (wanted[case.group].index(token)
                                   if token in wanted[case.group] else -1)
    return None if token in likeliest else f"first token {token}, expected one of {likeliest[:4]}"


def start(case, setting, rung, first):
    command = [str(word) for word in case.command(setting, first)] + rung.arguments
    return run_process(command, rung.environment, case.limit)


def measure(case, setting, record, round_index, wanted):
    """One process of one case; the rung moves down where a peer crashes."""
    while True:
        rung = case.rungs[record["rung"]]
        done = start(case, setting, rung, round_index == 0)
        if done.code == 0:
            break
        more = record["rung"] + 1 < len(case.rungs)
        if done.code < 0 and not done.timed_out and more:
            record["notes"].append(f"{rung.isa}: {done.why()}; retried on "
                                   f"{case.rungs[record['rung'] + 1].isa}")
            say(f"  {case.id}: {record['notes'][-1]}")
            record["rung"] += 1
            continue
        record["skipped"] = done.why()
        return
    try:
        result = case.read(done.output, setting)
    except (ValueError, KeyError, IndexError, StopIteration) as error:
        record["skipped"] = f"its output cannot be read: {error!r}"
        return
    if case.check and round_index == 0:
        checked = run_process([str(word) for word in case.check(setting)], rung.environment,
                              case.limit)
        if checked.code != 0:
            record["skipped"] = f"check: {checked.why()}"
            return
        result.update(case.read_check(checked.output))
    if not case.check or round_index == 0:
        wrong = check(case, result, wanted)
        if wrong:
            record["skipped"] = f"wrong result: {wrong}"
            return
    for key in ("losses", "loss_difference", "first_token", "first_token_place", "forecast",
                "adapter_dtype", "forward_ms", "backward_ms", "line", "system"):
        if key in result and (round_index == 0 or key == "line"):
            record[key] = result[key]
    record["isa"] = rung.isa
    record["rounds"].append({
        "ms": [round(x, 4) for x in result["ms"]], "peak_bytes": done.peak_bytes,
        "steal": round(done.steal, 4), "load": round(done.load, 2), "date": now()})


def available_bytes():
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":") for line in file)
        return 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return float("inf")


def asked(name, options):
    """Whether --only names a case such as decode/wick-4 or a run such as bench/auto."""
    return any(fnmatch.fnmatch(name, pattern) or name.split("/")[0] == pattern
               for pattern in options.only.split(","))


def left_out(options):
    """Whether what takes long is not run: in a quick run, but for what was asked for by name."""
    return options.quick and options.only == "*"


def has_units(setting):
    """Whether wick computes in bf16 by itself."""
    return setting.wick_isa in ("amx", "avx512_bf16")


def trains(setting, shape, limit=60):
    """Whether a training step of a larger shape takes less than `limit` seconds or so at this
    machine's measured peak in f32; with units of bf16 it takes a fraction of that."""
    seconds = 3 * case_list.shape_gflop(shape, 512) / setting.peak_gflops
    return seconds < limit or has_units(setting)


def bench_runs(setting, options):
    """(name, flags, which lines are kept) of the processes that make wick's own tables."""
    own = ["--model", setting.folder / "model"]
    seconds = ["--seconds", "0.3"] if options.quick else []
    tables = options.tables.split(",")
    yield "auto", [*tables, *own, *seconds], lambda bench: bench != "profile"
    if options.tables != "all":
        return
    other = "f32" if has_units(setting) else "bf16"
    yield other, ["ops", "lora", "gradient", *own, "--dtype", other, *seconds], lambda bench: True
    yield ("profile", ["train", "prefill", "decode", *own, "--profile", *seconds],
           lambda bench: bench == "profile")
    for shape in case_list.SHAPES:
        if not left_out(options):
            tables = ["train", "prefill", "decode"] if trains(setting, shape) else ["prefill",
                                                                                    "decode"]
            yield (shape, None if available_bytes() < 1.3 * case_list.weight_bytes(shape) else
                   [*tables, "--shape", shape, "--iters", "2", "--warmup", "1"],
                   lambda bench: True)


def bench(setting, options, state, save, deadline):
    """wick's own tables, and PyTorch's single operations beside them. True when all is done."""
    for name, words, kept in bench_runs(setting, options):
        if name in state["bench"] or not asked(f"bench/{name}", options):
            continue
        if time.monotonic() > deadline:
            return False
        run = {"lines": [], "peer": [], "date": now(), "commit": state["identity"]["commit"]}
        state["bench"][name] = run
        if words is None:
            run["skipped"] = "not enough free memory"
            continue
        say(f"  wick bench {name}")
        done = run_process([str(word) for word in (
            setting.wick, "bench", *words, *case_list.on_cpu(setting), "--json")], None, 2400)
        lines = [json.loads(x) for x in done.output.splitlines() if x.startswith("{")]
        run["lines"] = [x for x in lines if "bench" in x and kept(x["bench"])]
        if done.code != 0:
            run["skipped"] = done.why()
        if name in case_list.SHAPES:
            run["peer"] = peer_shape(setting, name)
        if name in ("auto", "f32", "bf16") and options.tables == "all":
            run["peer"] = peer_ops(setting, options, {x.get("dtype") for x in run["lines"]})
        save()
    return True


def peer_ops(setting, options, types):
    lines = []
    for kind in sorted(types & {"f32", "bf16"}):
        rung = case_list.torch_rungs(setting, kind, True, kind == "f32")[0]
        done = run_process([str(word) for word in (
            sys.executable, case_list.HERE / "peer_torch.py", "ops", setting.folder, "--dtype", kind,
            "--threads", setting.threads, "--seconds", 0.3 if options.quick else 1)],
            rung.environment, 180)
        if done.code == 0:
            lines += case_list.last_object(done.output, setting)["lines"]
    return lines


def peer_shape(setting, shape):
    """PyTorch on random weights of a larger shape; its training step needs room beside them."""
    # Where bf16 has no products f32 is PyTorch's best, at twice the bytes.
    kind = "f32" if case_list.slow_in_torch(setting, "bf16") else "bf16"
    if kind == "f32" and available_bytes() < 2.6 * case_list.weight_bytes(shape):
        return []
    words = [sys.executable, case_list.HERE / "peer_torch.py", "shape", setting.folder, "--dtype",
             kind, "--shape", shape, "--threads", setting.threads, "--count", 2]
    if available_bytes() < 1.6 * case_list.weight_bytes(shape) or not trains(setting, shape, 30):
        words.append("--no-train")
    rung = case_list.torch_rungs(setting, kind, True, kind == "f32")[0]
    done = run_process([str(word) for word in words], rung.environment, 420)
    return case_list.last_object(done.output, setting)["lines"] if done.code == 0 else []


def add_to(path, results, tables="all"):
    """The results at `path` with what was measured now in its place, marked with its own commit."""
    whole = json.loads(path.read_text())
    mark = {"commit": results["commit"], "date": results["finished"][:10]}
    fresh = {c["id"]: {**c, "apart": mark} for c in results["cases"]}
    whole["cases"] = [fresh.pop(c["id"], c) for c in whole["cases"]] + list(fresh.values())
    for name, run in results["bench"].items():
        partly = tables != "all" and name in whole["bench"]
        whole["bench"][name] = with_tables(whole["bench"][name], run) if partly else run
    return whole


def with_tables(before, run):
    """A run of `wick bench` with the tables of another in the place of its own, each line of them
    marked with its own commit."""
    fresh = [{**line, "commit": run["commit"]} for line in run["lines"]]
    tables = {line["bench"] for line in fresh}
    whole = {**before, "lines": [x for x in before["lines"] if x["bench"] not in tables] + fresh}
    whole.pop("skipped", None)
    return {**whole, "skipped": run["skipped"]} if "skipped" in run else whole


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="what make_model.py wrote")
    parser.add_argument("--wick", type=Path, required=True)
    parser.add_argument("--shim", default="", help="preload library for peers")
    parser.add_argument("--mkl-shim", default="", help="another, for products of MKL")
    parser.add_argument("--out", type=Path, help="the results, default bench/results/MACHINE.json")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--only", default="*",
                        help="by patterns with commas, such as 'decode/*,bench/auto'")
    parser.add_argument("--tables", default="all",
                        help="of wick bench, with commas, such as lora,merge; with --add")
    parser.add_argument("--add", action="store_true", help="to the results that are there")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this long")
    options = parser.parse_args()
    # An exception, so that the process that is being measured ends with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = options.rounds or (2 if options.quick else 5)
    deadline = time.monotonic() + options.seconds if options.seconds else float("inf")

    machine = describe_machine()
    device = wick_device(options.wick)
    machine.update(isa=device["isa"], peak_gflops=device["peak_gflops"])
    name = slug(f"{full_name(machine)} {machine['isa']}")
    root = Path(__file__).resolve().parents[2]
    out = options.out or root / "bench" / "results" / f"{name}.json"
    setting = case_list.Setting(options.folder, options.folder / "work", options.wick,
                                options.threads, options.quick, options.shim, machine["flags"],
                                device["isa"], device["peak_gflops"], options.mkl_shim)
    setting.work.mkdir(exist_ok=True)
    identity = {"format": FORMAT, "commit": git("rev-parse", "--short=12", "HEAD"),
                "changed": bool(git("status", "--porcelain", "--untracked-files=no")),
                "threads": options.threads, "quick": options.quick, "machine": machine["cpu"],
                "versions": versions(options.wick)}
    state_path = options.folder / "work" / f"state-{name}.json"
    state = {"identity": identity, "started": now(), "cases": {}, "bench": {}}
    if options.resume and state_path.exists():
        before = json.loads(state_path.read_text())
        if before["identity"] == identity:
            state = before
        else:
            say("the earlier state is of another commit, version or setting: starting afresh")
    save = lambda: write_json(state_path, state)

    if options.tables != "all" and not options.add:
        raise SystemExit("compare: --tables measures a part of a comparison: give --add too")
    if options.add and not out.exists():
        raise SystemExit(f"compare: {out} is not there; --add brings cases into a comparison that is")
    # Interpreters and libraries take the thread count from the environment.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    cases = [c for c in case_list.all_cases(setting) if asked(c.id, options)]
    wanted = reference(setting, case_list.torch_rungs(setting, "f32")) if cases else {}
    stopped = False
    for group in ("train", "prefill", "decode"):
        for index in range(rounds):
            for case in (c for c in cases if c.group == group):
                record = state["cases"].setdefault(case.id, {
                    "id": case.id, "group": group, "engine": case.engine, "package": case.package,
                    "bits": case.bits, "configuration": case.configuration, "isa": "", "rung": 0,
                    "notes": [], "rounds": []})
                if left_out(options) and not case.quick:
                    record.setdefault("skipped", "left out of a quick run")
                if ("skipped" in record or len(record["rounds"]) > index
                        or (case.rounds and index >= case.rounds)):
                    continue
                if time.monotonic() > deadline:
                    stopped = True
                    break
                measure(case, setting, record, index, wanted)
                save()
                if "skipped" in record:
                    say(f"  {case.id}: left out: {record['skipped']}")
                else:
                    ms = sorted(record["rounds"][-1]["ms"])
                    say(f"  round {index + 1}/{rounds} {case.id}: {ms[len(ms) // 2]:.1f} ms")
    if not stopped:
        stopped = not bench(setting, options, state, save, deadline)
    results = {**identity, "machine": machine, "started": state["started"], "finished": now(),
               "rounds": rounds, "shim": bool(options.shim), "work": case_list.work(),
               "learning_rate": case_list.LEARNING_RATE,
               "reference_losses": wanted.get("losses", []),
               "cases": list(state["cases"].values()), "bench": state["bench"]}
    write_json(out, add_to(out, results, options.tables) if options.add else results)
    say(f"{out}{': not complete, go on with --resume' if stopped else ''}")
    return 3 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
