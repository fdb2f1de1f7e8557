# SPDX-License-Identifier: Apache-2.0
"""Runs one process of the comparison and says what it took; facts about the machine."""

import os
import platform
import re
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass


@dataclass
class Finished:
    code: int  # negative: the signal that ended it
    output: str
    errors: str
    peak_bytes: int
    seconds: float
    steal: float  # share of the machine's time that the hypervisor gave to others
    load: float  # of the machine, as the process started
    timed_out: bool = False

    def why(self):
        """One line on a failure."""
        if self.timed_out:
            return f"stopped after {self.seconds:.0f} s"
        if self.code < 0:
            return f"died of {signal.Signals(-self.code).name}"
        lines = [line for line in self.errors.strip().splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"exit code {self.code}"


def _cpu_times():
    try:
        with open("/proc/stat") as file:
            fields = [int(x) for x in file.readline().split()[1:9]]
        return sum(fields), fields[7]
    except OSError:
        return 0, 0


def run_process(command, environment=None, limit=180):
    """The peak is the kernel's: resident bytes of this process alone."""
    env = {**os.environ, **(environment or {})}
    all_before, stolen_before = _cpu_times()
    load = os.getloadavg()[0]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        since = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                   env=env)
        expired = threading.Event()

        def stop():
            expired.set()
            process.kill()

        timer = threading.Timer(limit, stop)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)  # reaped here, not by subprocess
        seconds = time.monotonic() - since
        out.seek(0)
        err.seek(0)
        all_after, stolen_after = _cpu_times()
        unit = 1 if platform.system() == "Darwin" else 1024
        return Finished(process.returncode, out.read(), err.read(), usage.ru_maxrss * unit, seconds,
                        (stolen_after - stolen_before) / max(1, all_after - all_before), load,
                        expired.is_set())


def _first_match(path, pattern):
    try:
        with open(path) as file:
            found = re.search(pattern, file.read(), re.MULTILINE)
        return found.group(1).strip() if found else ""
    except OSError:
        return ""


def describe_machine():
    flags = set(_first_match("/proc/cpuinfo", r"^flags\s*:(.*)$").split())
    name = _first_match("/proc/cpuinfo", r"^model name\s*:(.*)$")
    if not name and platform.system() == "Darwin":
        name = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True,
                              text=True, check=False).stdout.strip()
    family = _first_match("/proc/cpuinfo", r"^cpu family\s*:(.*)$")
    model = _first_match("/proc/cpuinfo", r"^model\s*:(.*)$")
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8",
              "asimd", "bf16", "i8mm")
    return {"cpu": name or platform.processor() or platform.machine(),
            "family": f"{family}/{model}" if family else "",
            "flags": [f for f in wanted if f in flags],
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": f"{platform.system()} {platform.release()}"}
