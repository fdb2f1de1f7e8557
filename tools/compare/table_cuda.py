# SPDX-License-Identifier: Apache-2.0
"""The part of docs/benchmarks.md that tools/compare.sh cuda measured."""

from table_text import median, number, quantile, size, table

FORMAT = 2
LOSSES_READ = "behind the next start"  # of groups that were measured so

INTRO = """How it is measured on a GPU:

- All engines read the same weights file (random, of the shape that is named; Qwen2.5-0.5B's unless
  said), the same adapter with B ≠ 0, and the same token ids; every position is supervised, the loss
  is the exact cross-entropy, AdamW and clipping at norm 1.
- Training is timed in whole steps by the wall clock, from the end of one to the end of the next,
  with a fresh batch copied to the card in each. Every loss is read, of all engines when the next
  step has been started, as wick trains (where a table says so: directly after its step); beside it,
  for peers, the time with losses read every tenth step only. Each turn is {steps} steps or more
  after a warm-up.
- The first token is the time from the prompt's ids on the host to the likeliest token on the host.
- PyTorch runs transformers' model with PEFT's layers, SDPA and the fused AdamW, eager, compiled,
  and compiled with CUDA graphs; f32 products may use TF32. MLX runs mlx-lm's compiled step.
- Peers are one process each, which stays alive and idle between its turns; wick is a new process
  every turn. Engines are timed in turn (A/B/A/B). A ratio is taken within a round; the table shows
  the median of the rounds and the lowest and highest one.
- A time counts only where the result was right: ten losses of learnable rows against PyTorch in f32
  (the first within 2e-3, all within 1e-2), for decoding the first greedy token among PyTorch's
  likeliest in f32 (of the first 4 for bf16 and 8 bits, of the first 1,000 for 4 bits).
- Memory: the allocator's peak (wick: what its plan places), and what the process took of the card
  in all, context and libraries included, as nvidia-smi saw it.
- The ratio is the peer's time over wick's: above 1, wick is faster.
"""
TYPES = {"bf16": "bf16", "8": "8-bit", "4": "4-bit"}


def is_wick(case):
    return case["engine"] == "wick"


def times(case, key="ms"):
    return [ms for r in case["rounds"] for ms in r.get(key, [])]


def by_round(case, key):
    return [median(r[key]) for r in case["rounds"] if r.get(key)]


def ratios(peer, own, key="ms"):
    """(median, lowest, highest) of the peer's time over wick's, round by round."""
    pairs = [p / o for p, o in zip(by_round(peer, key), by_round(own, key))]
    return (median(pairs), min(pairs), max(pairs)) if pairs else None


def ratio_text(peer, own, key="ms"):
    found = ratios(peer, own, key) if own else None
    return f"{found[0]:.2f}× ({found[1]:.2f}–{found[2]:.2f})" if found else ""


def fastest(cases, key="ms"):
    cases = [c for c in cases if times(c, key)]
    return min(cases, key=lambda c: median(by_round(c, key))) if cases else None


def most(case, key):
    values = [r[key] for r in case["rounds"] if r.get(key)]
    return size(max(values)) if values else ""


def middle(case, key):
    values = [r[key] for r in case["rounds"] if r.get(key)]
    return f"{median(values):,.0f}" if values else ""


def spread(values):
    if not values:
        return ""
    low, high = quantile(values, 0.1), quantile(values, 0.9)
    return f"{number(median(values))} ({number(low)}–{number(high)})"


def numbers(case):
    """The types of weights, adapter and moments; bf16 stands for bfloat16."""
    short = lambda x: str(x).replace("bfloat16", "bf16").replace("float32", "f32")
    return " / ".join(short(case[k]) for k in ("weights", "adapter", "moments") if case.get(k))


def name(case, versions):
    return (f"**{case['engine']}**" if is_wick(case)
            else f"{case['engine']} {versions.get(case['package'], '')}")


def headline(groups):
    rows = []

    def row(title, own, peer, key):
        if own and peer and times(own, key) and times(peer, key):
            rows.append([title, f"{number(median(times(own, key)))} ms",
                         f"{peer['engine']}, {peer['configuration']}",
                         f"{number(median(times(peer, key)))} ms", ratio_text(peer, own, key),
                         most(own, "peak_bytes"), most(peer, "peak_bytes")])

    for group in groups:
        peers = [c for c in group["cases"] if not is_wick(c)]
        own = next((c for c in group["cases"] if is_wick(c) and c["bits"] == "bf16"), None)
        row(group["title"], own, fastest(peers), "ms")
        if group["kind"] == "decode":
            row("First token, prompt 128", own, fastest(peers, "first_ms"), "first_ms")
    return rows


def train_table(group):
    own = next((c for c in group["cases"] if is_wick(c)), None)
    tokens, rows = group["batch"] * group["seq"], []
    gflop = own.get("gflop") if own else None
    for case in group["cases"]:
        ms = times(case)
        if not ms:
            continue
        apart = [r["apart_ms"] for r in case["rounds"] if r.get("apart_ms")]
        rows.append([name(case, group["versions"]), case["configuration"], numbers(case),
                     spread(ms), number(median(apart)) if apart else "",
                     number(1e3 * tokens / median(ms)),
                     number(gflop / median(ms)) if gflop else "",
                     "" if is_wick(case) else ratio_text(case, own),
                     most(case, "peak_bytes"), most(case, "process_bytes"),
                     middle(case, "sm_mhz"), middle(case, "watt")])
    return table(["engine", "configuration", "weights / adapter / moments", "ms (p10–p90)",
                  "ms, losses every 10th step", "tokens/s", "TFLOP/s", "time over wick's",
                  "allocator peak", "on the card", "highest SM MHz", "highest W"],
                 rows, 3) if rows else ""


def decode_table(group):
    own = {c["bits"]: c for c in group["cases"] if is_wick(c)}
    single = next((c for c in group["cases"] if is_wick(c) and c["batch"] == 1), None)
    batches = len({c["batch"] for c in group["cases"]}) > 1
    rows = []
    for case in group["cases"]:
        ms = times(case)
        if not ms:
            continue
        rate = 1e3 * case["batch"] / median(ms)
        linear = ""
        if batches and single and times(single):
            linear = f"{median(times(single)) / median(ms):.2f}"
        peer = None if is_wick(case) else own.get(case["bits"])
        rows.append([name(case, group["versions"]), case["configuration"], TYPES[case["bits"]],
                     spread(ms), number(rate), *([linear] if batches else [
                         "" if peer is None else ratio_text(case, peer),
                         spread(times(case, "first_ms")),
                         "" if peer is None else ratio_text(case, peer, "first_ms")]),
                     most(case, "process_bytes"), middle(case, "sm_mhz"), middle(case, "watt")])
    middle_heads = ["of linear"] if batches else ["time over wick's", "first token, ms (p10–p90)",
                                                  "time over wick's"]
    return table(["engine", "configuration", "type", "ms per token (p10–p90)", "tokens/s",
                  *middle_heads, "on the card", "highest SM MHz", "highest W"],
                 rows, 3) if rows else ""


def notes(group):
    text = ""
    apart = [f"{c['engine']}, {c['configuration']} {c['loss_difference']:.1e}"
             for c in group["cases"] if c.get("loss_difference") is not None and c["rounds"]]
    if apart:
        text += ("\nLargest relative difference of ten losses to PyTorch in f32: "
                 f"{'; '.join(apart)}.\n")
    if group["kind"] == "train" and group.get("losses_read") != LOSSES_READ:
        text += "\nLosses were read directly after each step, wick's as the peers'.\n"
    for case in group["cases"]:
        for key, shown in (("graph_breaks", "graph breaks"),
                           ("cudagraph_skips", "graphs that could not be CUDA graphs")):
            if case.get(key):
                text += f"\n{case['configuration']}: {case[key]} {shown}.\n"
    for case in group["cases"]:
        if "skipped" in case:
            text += f"\nLeft out: {case['engine']}, {case['configuration']} ({case['skipped']}).\n"
    if "skipped" in group:
        text += f"\nLeft out: all of it ({group['skipped']}).\n"
    return text


def losses_table(group):
    cases = [c for c in group["cases"] if c.get("losses") and c["rounds"]]
    wanted = group.get("reference", {}).get("losses", [])
    if not cases or not wanted:
        return ""
    head = ["step", "PyTorch f32 (reference)",
            *(f"{c['engine']}, {c['configuration']}" for c in cases)]
    rows = [[i + 1, f"{loss:.5f}", *(f"{c['losses'][i]:.5f}" for c in cases)]
            for i, loss in enumerate(wanted)]
    return f"\n#### The losses that were compared, {group['batch']} × {group['seq']}\n\n" + table(
        head, rows)


def facts(group):
    """What the group was measured with, in one line."""
    changed = " with uncommitted changes" if group["changed"] else ""
    # A run that was stopped has fewer rounds than were asked for.
    rounds = min((len(c["rounds"]) for c in group["cases"] if c["rounds"]), default=0)
    rounds = f"{rounds} round{'' if rounds == 1 else 's'}"
    return (f"commit {group['commit']}{changed}, {group['started'][:10]}, {rounds}"
            f"{' of a quick run' if group['quick'] else ''}")


def section(results):
    groups = list(results["groups"].values())
    card = groups[0]["card"] if groups else {}
    machine = results["machine"]
    text = f"## {card.get('name', 'A dry run without a card')}\n\n{INTRO.format(steps=25)}\n"
    sets = {}
    for group in groups:
        shown = ", ".join(f"{k} {v}" for k, v in group["versions"].items())
        sets.setdefault((shown, group["card"].get("driver", "none")), []).append(group)
    text += (f"{card.get('memory', 'No memory')} on the card, power limit "
             f"{card.get('power_limit', 'unknown')}, SM clock up to "
             f"{card.get('sm_max', 'unknown')}; host {machine['cpu']}, {machine['cores']} cores, "
             f"{machine['system']}.")
    for (versions, driver), members in sets.items():
        text += f" Driver {driver}; versions: {versions}"
        text += f" ({', '.join(g['name'] for g in members)})." if len(sets) > 1 else "."
    text += "\n\n"
    rows = headline(groups)
    if rows:
        text += "### wick against the strongest peer on the card\n\n" + table(
            ["work", "wick", "strongest peer", "its time", "time over wick's", "wick's memory",
             "its memory"], rows) + "\n"
    for group in groups:
        text += f"### {group['title']}\n\nMeasured as {group['name']}: {facts(group)}.\n\n"
        body = train_table(group) if group["kind"] == "train" else decode_table(group)
        text += (body or "Nothing was measured.\n") + notes(group)
        if group["name"] == "train-1x512":
            text += losses_table(group)
        text += "\n"
    return text
