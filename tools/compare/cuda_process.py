# SPDX-License-Identifier: Apache-2.0
"""Peers that stay alive between their turns, and a watch on the card's clocks, power and memory."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path


class PeerError(Exception):
    """What went wrong with a peer, in one line."""


class Peer:
    """A process that cuda_peer.serve() runs in."""

    def __init__(self, command, job, environment, log):
        self.log = Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "w") as errors:
            # A process group of its own, so that compilers it starts end with it.
            self.process = subprocess.Popen(
                [*map(str, command), json.dumps(job)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0,
                env={**os.environ, **environment})
        self.pid = self.process.pid
        self.lines = []
        self.arrived = threading.Condition()
        self.ended = False
        self.since = time.monotonic()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self):
        for line in self.process.stdout:
            with self.arrived:
                self.lines.append(line)
                self.arrived.notify_all()
        with self.arrived:
            self.ended = True
            self.arrived.notify_all()

    def has_answer(self):
        """Whether answer() would return or raise at once."""
        with self.arrived:
            return bool(self.lines) or self.ended

    def answer(self, limit):
        """The next answer, within `limit` seconds. Raises PeerError; the process is gone then."""
        with self.arrived:
            self.arrived.wait_for(lambda: self.lines or self.ended, timeout=max(0.01, limit))
            line = self.lines.pop(0) if self.lines else None
            ended = self.ended
        if line is None:
            self.close()
            raise PeerError(self._why() if ended else
                            f"stopped after {max(limit, time.monotonic() - self.since):.0f} s")
        try:
            return json.loads(line)
        except ValueError as error:
            self.close()
            raise PeerError(f"its output cannot be read: {error}") from error

    def block(self, words, limit):
        try:
            self.process.stdin.write(json.dumps(words) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            self.close()
            raise PeerError(self._why()) from error
        return self.answer(limit)

    def _why(self):
        code = self.process.wait()
        if code < 0:
            return f"died of {signal.Signals(-code).name}"
        lines = [x for x in self.log.read_text(errors="replace").splitlines() if x.strip()]
        return lines[-1].strip()[:200] if lines else f"exit code {code}"

    def close(self):
        if self.process.poll() is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


QUERY = "memory.used,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu"


class Watch:
    """Samples of nvidia-smi while something runs; does nothing where there is no nvidia-smi."""

    def __init__(self):
        self.samples, self.by_process, self.running = [], [], []
        if not shutil.which("nvidia-smi"):
            return
        for query, take, ms in ((f"--query-gpu={QUERY}", self._card, 200),
                                ("--query-compute-apps=pid,used_memory", self._process, 500)):
            process = subprocess.Popen(
                ["nvidia-smi", query, "--format=csv,noheader,nounits", f"-lms={ms}"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                text=True)
            self.running.append(process)
            threading.Thread(target=self._read, args=(process, take), daemon=True).start()

    def _read(self, process, take):
        for line in process.stdout:
            numbers = []
            for field in line.split(","):
                try:
                    numbers.append(float(field))
                except ValueError:
                    numbers.append(None)
            take(time.monotonic(), numbers)

    def _card(self, when, numbers):
        if len(numbers) == len(QUERY.split(",")):
            self.samples.append((when, numbers))

    def _process(self, when, numbers):
        if len(numbers) == 2 and None not in numbers:
            self.by_process.append((when, int(numbers[0]), int(numbers[1]) << 20))

    def between(self, since, until, pid=None):
        """The highest clock, power and memory that were seen: a turn loads before it computes."""
        rows = [numbers for when, numbers in self.samples if since <= when <= until]
        found = {}
        for index, name in ((1, "sm_mhz"), (2, "memory_mhz"), (3, "watt"), (4, "celsius")):
            values = [r[index] for r in rows if r[index] is not None]
            if values:
                found[name] = max(values)
        used = [r[0] for r in rows if r[0] is not None]
        if used:
            found["card_bytes"] = int(max(used)) << 20
        own = [size for when, who, size in self.by_process
               if who == pid and since <= when <= until]
        if own:
            found["process_bytes"] = max(own)
        return found

    def settled(self):
        """Bytes that are taken on the card once what was freed shows; None: unknown."""
        if self.running:
            time.sleep(0.5)
        used = self.samples[-1][1][0] if self.samples else None
        return int(used) << 20 if used is not None else None

    def close(self):
        for process in self.running:
            process.kill()
            process.wait()


def describe_card():
    names = "name,driver_version,memory.total,clocks.max.sm,power.limit,persistence_mode"
    if not shutil.which("nvidia-smi"):
        return {}
    done = subprocess.run(["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader"],
                          capture_output=True, text=True, check=False)
    fields = [x.strip() for x in done.stdout.splitlines()[0].split(",")] if done.stdout else []
    return dict(zip(("name", "driver", "memory", "sm_max", "power_limit", "persistence"), fields))
