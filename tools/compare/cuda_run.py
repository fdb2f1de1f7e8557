#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the comparison on an NVIDIA GPU and writes what was measured; see tools/compare.sh.

In a group, all peers warm up first, several at a time, and stay alive; then engines are timed in
turn, round by round, each alone on the card. wick gets a process per turn. A time counts only where
ten losses, or the first greedy token, agree with PyTorch in f32. Results are on disk after every
round, each group with the commit, versions and clocks that it was measured with, and --resume goes
on from there.
"""

import argparse
import fnmatch
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import cuda_cases as case_list
import cuda_model
from cuda_process import Peer, PeerError, Watch, describe_card
from machine import slug
from process import describe_machine, run_process
from run import git, now, say, with_tables, write_json
from table_cuda import LOSSES_READ

FORMAT = 2
# Largest relative difference of a loss: before anything was learnt, and over ten steps.
FIRST_LOSS, LOSSES = 2e-3, 1e-2
TOKEN_DEPTH = {"bf16": 4, "8": 4, "4": 1000}  # of the reference's list, for a first token
NAMES = ("torch", "transformers", "peft", "triton", "mlx", "mlx-lm", "numpy")


class OutOfTime(Exception):
    pass


@dataclass
class Setting:
    wick: Path
    device: str
    folder: Path
    python: str
    mlx_python: str
    source: list  # wick's flags for the weights, in a dry run
    rounds: int
    quick: bool
    parallel: int
    deadline: float

    @property
    def dry(self):
        return self.device != "cuda"

    @property
    def prompt(self):
        return 16 if self.dry else case_list.PROMPT

    def steps(self, group):
        return 3 if self.dry else group.steps()

    def left(self):
        return self.deadline - time.monotonic()


def versions_in(python, names):
    script = ("import importlib.metadata as m, json, sys\nf = {}\nfor n in sys.argv[1:]:\n"
              "  try: f[n] = m.version(n)\n  except m.PackageNotFoundError: pass\n"
              "f['python'] = sys.version.split()[0]\nprint(json.dumps(f))")
    done = subprocess.run([python, "-c", script, *names], capture_output=True, text=True,
                          check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def versions(s):
    found = {"wick": subprocess.run([s.wick, "--version"], capture_output=True, text=True,
                                    check=False).stdout.strip().removeprefix("wick ")}
    found.update(versions_in(s.python, NAMES))
    if s.mlx_python:
        mine = versions_in(s.mlx_python, ("mlx", "mlx-lm"))
        found.update({k: v for k, v in mine.items() if k.startswith("mlx")})
    return found


def wrong_losses(got, wanted):
    """(largest relative difference, None or what is wrong)."""
    if len(got) < len(wanted):
        return None, f"{len(got)} losses, expected {len(wanted)}"
    apart = [abs(a - b) / abs(b) for a, b in zip(got, wanted)]
    worst = max(apart)
    if not apart[0] <= FIRST_LOSS:
        return worst, f"the first loss differs by {apart[0]:.1e}, allowed {FIRST_LOSS:.0e}"
    if not worst <= LOSSES:
        return worst, f"losses differ by {worst:.1e}, allowed {LOSSES:.0e}"
    return worst, None


def check(group, case, record, result, reference):
    """None where the result is right, else what is wrong; notes in `record` what was compared."""
    if group.kind == "train":
        record["losses"] = result["losses"]
        record["loss_difference"], wrong = wrong_losses(result["losses"], reference["losses"])
        return wrong
    top, token = reference["top"], result["first_token"]
    record["first_token_place"] = top.index(token) if token in top else -1
    allowed = top[:TOKEN_DEPTH[case.bits]]
    return None if token in allowed else f"first token {token}, expected one of {allowed[:4]}"


class GroupRun:
    def __init__(self, s, group, state, save):
        self.s, self.group, self.state, self.save = s, group, state, save
        self.records = {r["id"]: r for r in state["cases"]}
        self.peers = {}
        self.checked = {}  # bits -> what wick's check gave
        self.watch = Watch()

    def wick(self, words, limit=400):
        words = [str(w) for w in words]
        done = run_process(words, None, min(limit, max(1, self.s.left())))
        if done.timed_out and self.s.left() <= 1:
            raise OutOfTime
        return done

    def prepare(self):
        s, g = self.s, self.group
        folder = s.folder / g.shape

        def make(words):
            for device in dict.fromkeys((s.device, "cpu")):
                done = self.wick([s.wick, *words, "--device", device, "--json"])
                if done.code == 0:
                    return
            raise PeerError(f"making the model: wick: {done.why()}")

        source = s.source or ["--shape", g.shape]
        self.paths = {
            "model": cuda_model.make_model(folder, make, source),
            "adapter": cuda_model.make_adapter(folder, make, g.rank, g.targets),
            "data": cuda_model.make_rows(folder, g.batch, g.seq, s.prompt)}

    def start(self, mode, case=None):
        s, g = self.s, self.group
        mlx = mode == "mlx"
        job = {"kind": g.kind, "mode": mode, "device": s.device, "batch": g.batch, "seq": g.seq,
               "prompt": s.prompt, "room": case_list.ROOM, "dtype": "bf16",
               "adapter_dtype": case.adapter_dtype if case else "f32",
               "learning_rate": self.group.learning_rate,
               "bench_learning_rate": case_list.BENCH_LEARNING_RATE,
               **{k: str(v) for k, v in self.paths.items()}}
        if mode == "reference":
            job["dtype"] = "f32"
        name = case.id if case else mode
        return Peer([s.mlx_python if mlx else s.python,
                     case_list.HERE / ("cuda_mlx.py" if mlx else "cuda_torch.py")], job,
                    {"TORCHINDUCTOR_CACHE_DIR": str(s.folder / "inductor"),
                     "TRITON_CACHE_DIR": str(s.folder / "triton")},
                    s.folder / "logs" / f"{g.name}-{name}.log")

    def overdue(self, case, peer):
        if self.s.left() <= 0:
            raise OutOfTime
        return time.monotonic() - peer.since > (case.warm_limit if case else 300)

    def warm_up(self, cases):
        """Starts what is needed, `parallel` at a time, and checks each peer's results."""
        waiting = [(c.id, c.mode, c) for c in cases if c.mode]
        if "reference" not in self.state:
            waiting.insert(0, ("reference", "reference", None))
        if not waiting:
            return
        say(f"  warming up {', '.join(name for name, _, _ in waiting)}")
        running, ready = [], {}
        try:
            while waiting or running:
                while waiting and len(running) < self.s.parallel:
                    name, mode, case = waiting.pop(0)
                    running.append((name, case, self.start(mode, case)))
                at = next((i for i, (_, case, peer) in enumerate(running)
                           if peer.has_answer() or self.overdue(case, peer)), None)
                if at is None:
                    time.sleep(0.05)
                    continue
                name, case, peer = running.pop(at)
                self.peers[name] = peer
                try:
                    took = time.monotonic() - peer.since
                    ready[name] = peer.answer(0)
                    say(f"  {name} is ready after {took:.0f} s")
                except PeerError as error:
                    self.peers.pop(name)
                    if not case:
                        raise PeerError(f"the reference: {error}") from error
                    self.skip(case, str(error))
                if name == "reference" and name in ready:
                    self.state["reference"] = ready.pop(name)
                    self.peers.pop(name).close()
        finally:
            for _, _, peer in running:
                peer.close()
        for case in cases:
            if case.id not in ready:
                continue
            facts, record = ready[case.id], self.records[case.id]
            for key in ("weights", "adapter", "moments", "graph_breaks", "cudagraph_skips",
                        "matmul", "tokens"):
                if key in facts:
                    record[key] = facts[key]
            wrong = check(self.group, case, record, facts, self.state["reference"])
            if wrong:
                self.skip(case, f"wrong result: {wrong}")

    def skip(self, case, why):
        self.records[case.id]["skipped"] = why
        say(f"  {case.id}: left out: {why}")
        if case.id in self.peers:
            self.peers.pop(case.id).close()

    def check_wick(self, case):
        g, record = self.group, self.records[case.id]
        if case.bits not in self.checked:
            work = self.s.folder / "work"
            done = self.wick(case_list.wick_check(self.s, g, case, self.paths, work))
            if done.code != 0:
                return self.skip(case, f"check: {done.why()}")
            try:
                self.checked[case.bits] = case_list.read_wick_check(g, done.output)
            except (ValueError, KeyError, IndexError, StopIteration) as error:
                return self.skip(case, f"check: its output cannot be read: {error!r}")
        wrong = check(g, case, record, self.checked[case.bits], self.state["reference"])
        if wrong:
            self.skip(case, f"wrong result: {wrong}")
        record["checked"] = not wrong

    def turn(self, case):
        """One engine's turn: a dict for the round, or None where it was left out."""
        s, g, record = self.s, self.group, self.records[case.id]
        since, pid = time.monotonic(), None
        if case.mode:
            peer = self.peers[case.id]
            pid = peer.pid
            words = ({"steps": s.steps(g)} if g.kind == "train" else
                     {"tokens": 5 if s.dry else 100, "firsts": 2 if s.dry else 10})
            try:
                found = peer.block(words, min(case.limit, max(1, s.left())))
            except PeerError as error:
                if s.left() <= 1:
                    raise OutOfTime from error
                return self.skip(case, str(error))
            keys = ("ms", "apart_ms", "first_ms", "peak_bytes", "reserved_bytes")
        else:
            others = self.watch.settled()
            since = time.monotonic()
            done = self.wick(case_list.wick_turn(s, g, case, self.paths), case.limit)
            if done.code != 0:
                return self.skip(case, done.why())
            try:
                found = case_list.read_wick_turn(g, done.output)
            except (ValueError, KeyError, IndexError, StopIteration) as error:
                return self.skip(case, f"its output cannot be read: {error!r}")
            if g.kind == "train":
                wanted = self.state["reference"].get("bench_losses", [])
                apart, wrong = wrong_losses(found["bench_losses"], wanted)
                if wrong:
                    return self.skip(case, f"wrong result of wick bench: {wrong}")
                record["bench_loss_difference"] = apart
            for key in ("weights", "adapter", "moments", "gflop", "line", "isa"):
                if key in found:
                    record[key] = found[key]
            keys = ("ms", "first_ms", "peak_bytes", "runs")
        seen = self.watch.between(since, time.monotonic(), pid)
        if not case.mode and seen.get("card_bytes") and others is not None:
            seen["process_bytes"] = max(0, seen["card_bytes"] - others)
        rounded = lambda x: [round(v, 5) for v in x] if isinstance(x, list) else x
        return {**{k: rounded(found[k]) for k in keys if found.get(k)}, **seen, "date": now()}

    def run(self, cases):
        try:
            self.prepare()
            self.warm_up(cases)
            for index in range(self.s.rounds):
                shown = []
                for case in cases:
                    record = self.records[case.id]
                    if "skipped" in record or len(record["rounds"]) > index:
                        continue
                    if self.s.left() <= 0:
                        raise OutOfTime
                    if not case.mode and not record.get("checked"):
                        self.check_wick(case)
                        if "skipped" in record:
                            continue
                    found = self.turn(case)
                    if found:
                        record["rounds"].append(found)
                        shown.append(f"{case.id} {sorted(found['ms'])[len(found['ms']) // 2]:.3f}")
                self.state["finished"] = now()
                self.save()
                say(f"  round {index + 1}/{self.s.rounds}, ms: {', '.join(shown) or 'nothing'}")
        except PeerError as error:
            say(f"  {self.group.name}: left out: {error}")
            self.state["skipped"] = str(error)
        finally:
            for peer in self.peers.values():
                peer.close()
            self.watch.close()
            self.save()


def new_record(case):
    return {"id": case.id, "engine": case.engine, "package": case.package, "bits": case.bits,
            "configuration": case.configuration, "batch": case.batch, "rounds": []}


def chosen(only, quick, group, case):
    """Whether a case is asked for; a quick run has what is long only where it is named."""
    patterns = [p if "/" in p else f"{p}/*" for p in only.split(",")]
    name = f"{group.name}/{case.id}"
    if not any(fnmatch.fnmatch(name, p) for p in patterns):
        return False
    named = name in patterns
    return named or not quick or (case.quick and (
        group.quick or any(p.split("/")[0] == group.name for p in patterns)))


def group_state(before, group, cases, identity, resume):
    """The group as it was where the same things were measured, without what is measured anew."""
    state = {"name": group.name, "kind": group.kind, "title": group.title, "shape": group.shape,
             "batch": group.batch, "seq": group.seq, "rank": group.rank,
             "targets": list(group.targets), **identity, "started": now(), "cases": []}
    if before and all(before.get(k) == v for k, v in identity.items()):
        state.update({k: before[k] for k in ("reference", "started") if k in before})
        state["cases"] = before["cases"]
        if not resume:
            anew = {c.id for c in cases}
            state["cases"] = [r for r in state["cases"] if r["id"] not in anew]
    have = {r["id"] for r in state["cases"]}
    state["cases"] += [new_record(c) for c in cases if c.id not in have]
    order = {c.id: i for i, c in enumerate(group.cases)}
    state["cases"].sort(key=lambda r: order.get(r["id"], len(order)))
    return state


def missing_reason(s, case):
    if case.mode == "mlx":
        if not s.mlx_python:
            return "not run: no interpreter with MLX"
        done = subprocess.run([s.mlx_python, "-c", "import mlx.core, mlx_lm"], text=True,
                              capture_output=True, check=False)
        if done.returncode != 0:
            return f"not run: {(done.stderr.strip().splitlines() or ['no MLX'])[-1][:200]}"
    return None


def bench(s, results, commit, save, tables="all"):
    """wick's own tables, and PyTorch's single operations beside them."""
    maker = GroupRun(s, case_list.all_groups()[0], {"cases": []}, save)
    maker.watch.close()
    maker.prepare()
    seconds = ["--seconds", "0.3" if s.quick else "1"]
    own = [s.wick, "bench", "--model", maker.paths["model"], "--device", s.device, "--json"]
    runs = {"auto": tables.split(",")}
    if tables == "all":
        runs["profile"] = ["train", "prefill", "decode", "--profile"]
    for name, words in runs.items():
        say(f"  wick bench {name}")
        done = maker.wick([*own, *words, *seconds], 300)
        lines = [{**x, "shape": maker.group.shape} for x in case_list.objects(done.output)
                 if "bench" in x]
        run = {"date": now(), "peer": [], "commit": commit,
               "lines": [x for x in lines if (x["bench"] == "profile") == (name == "profile")]}
        if done.code != 0:
            run["skipped"] = done.why()
        if tables != "all" and name in results["bench"]:
            run = with_tables(results["bench"][name], run)
        results["bench"][name] = run
        save()
    if tables != "all":
        return
    peer = Peer([s.python, case_list.HERE / "cuda_torch.py"],
                {"kind": "ops", "mode": "ops", "device": s.device, "dtype": "bf16"}, {},
                s.folder / "logs" / "ops.log")
    try:
        peer.answer(min(90, s.left()))
        results["bench"]["auto"]["peer"] = peer.block({}, min(60, s.left()))["lines"]
    except PeerError as error:
        say(f"  PyTorch's operations: left out: {error}")
    finally:
        peer.close()
    save()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the model, logs and caches")
    parser.add_argument("--wick", type=Path, required=True)
    parser.add_argument("--mlx-python", default="")
    parser.add_argument("--out", type=Path, help="default bench/results/CARD/compare.json")
    parser.add_argument("--commit", default="", help="of wick, where this is no checkout")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--only", default="*")
    parser.add_argument("--tables", default="all", help="of wick bench, with commas")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--source", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    deadline = time.monotonic() + options.seconds if options.seconds else float("inf")
    s = Setting(options.wick.resolve(), options.device, options.folder.resolve(), sys.executable,
                shutil.which(options.mlx_python) or "", options.source.split(), options.rounds or
                (2 if options.quick else 5), options.quick, options.parallel, deadline)
    card = describe_card()
    if not card and not s.dry:
        raise SystemExit("compare: nvidia-smi shows no card")
    root = Path(__file__).resolve().parents[2]
    place = slug(card.get("name", "dry run").removeprefix("NVIDIA "))
    out = options.out or root / "bench" / "results" / place / "compare.json"
    results = json.loads(out.read_text()) if out.exists() else {}
    if results.get("format") != FORMAT:
        results = {"format": FORMAT, "groups": {}, "bench": {}}
    results["machine"] = {k: v for k, v in describe_machine().items() if k != "flags"}
    changed = bool(git("status", "--porcelain", "--untracked-files=no"))
    identity = {"commit": options.commit or git("rev-parse", "--short=12", "HEAD"),
                "changed": changed and not options.commit, "card": card, "quick": s.quick,
                "rounds": s.rounds, "versions": versions(s), "losses_read": LOSSES_READ}
    save = lambda: write_json(out, results)
    reasons, stopped = {}, False
    for group in case_list.all_groups():
        if s.dry:
            group.seq //= 16
        cases = [c for c in group.cases if chosen(options.only, s.quick, group, c)]
        if not cases:
            continue
        state = group_state(results["groups"].get(group.name), group, cases, identity,
                            options.resume)
        records = {r["id"]: r for r in state["cases"]}
        for case in (c for c in cases if c.mode and not records[c.id]["rounds"]):
            if case.mode not in reasons:
                reasons[case.mode] = missing_reason(s, case)
            if reasons[case.mode]:
                records[case.id]["skipped"] = reasons[case.mode]
        cases = [c for c in cases if "skipped" not in records[c.id]
                 and len(records[c.id]["rounds"]) < s.rounds]
        results["groups"][group.name] = state
        before = results["groups"].get("decode", {})
        if group.kind == "decode" and "reference" in before and all(
                before[k] == state[k] for k in identity):
            state.setdefault("reference", before["reference"])
        if not cases:
            continue
        say(f"{group.name}: {group.title}")
        try:
            if s.left() <= 0:
                raise OutOfTime
            GroupRun(s, group, state, save).run(cases)
        except OutOfTime:
            stopped = True
            break
    if not stopped and any(fnmatch.fnmatch("bench", p) for p in options.only.split(",")):
        if options.tables != "all" or not (options.resume and
                                           results["bench"].get("auto", {}).get("peer")):
            try:
                bench(s, results, identity["commit"], save, options.tables)
            except (OutOfTime, PeerError) as error:
                stopped = isinstance(error, OutOfTime)
    save()
    say(f"{out}{': not complete, go on with --resume' if stopped else ''}")
    return 3 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
