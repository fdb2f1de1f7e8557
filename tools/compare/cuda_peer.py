# SPDX-License-Identifier: Apache-2.0
"""What the peers of the comparison on a GPU share: they warm up once, then wait for their turns.

A peer is a process that stays alive over all rounds of its group, idle while others are timed, so
that compiling is paid for once. Its one argument is the job as JSON. It answers on stdout, one line
of JSON each: first its facts, with the losses that are checked, then the times of every block of
work that a line on stdin asks for.
"""

import json
import os
import sys
import time

# Before every block: clocks and caches that another engine's turn cooled down.
WARM_STEPS, WARM_SECONDS = 5, 0.4
APART = 10  # steps between two readings of the loss in the second figure


def serve(build):
    """build(job) gives an object with `facts` and block(words)."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    engine = build(json.loads(sys.argv[1]))
    print(json.dumps(engine.facts), file=answers)
    for line in sys.stdin:
        print(json.dumps(engine.block(json.loads(line))), file=answers)


def warm(run):
    until, steps = time.perf_counter() + WARM_SECONDS, 0
    while steps < WARM_STEPS or (time.perf_counter() < until and steps < 200):
        run()
        steps += 1


def timed_steps(step, read, count):
    """Milliseconds from the end of one step to that of the next. Every loss is read, when the step
    behind it has been started, as wick's runs do it; the clock never stands still."""
    last = step()
    following = step()
    read([last])
    ms, before = [], time.perf_counter()
    for _ in range(count):
        last, following = following, step()
        read([last])
        now = time.perf_counter()
        ms.append(1e3 * (now - before))
        before = now
    read([following])
    return ms


def timed_apart(step, read, count):
    """Milliseconds per step where losses are read every APART steps only."""
    kept, since = [], time.perf_counter()
    for index in range(count):
        kept.append(step())
        if len(kept) == APART or index + 1 == count:
            read(kept)
            kept = []
    return 1e3 * (time.perf_counter() - since) / count


def train_block(words, step, read):
    """step() starts one and gives its loss; read(losses) waits for those steps and no later one."""
    warm(lambda: read([step()]))
    count = words["steps"]
    return {"ms": timed_steps(step, read, count),
            "apart_ms": timed_apart(step, read, max(APART, count // 2))}


def decode_block(words, first, following):
    """first() -> the token behind the prompt, following() -> the next one, both as numbers."""
    warm(first)
    first_ms = [first() for _ in range(words["firsts"])]
    for _ in range(WARM_STEPS):
        following()
    ms, before = [], time.perf_counter()
    for _ in range(words["tokens"]):
        following()
        now = time.perf_counter()
        ms.append(1e3 * (now - before))
        before = now
    return {"ms": ms, "first_ms": first_ms}
