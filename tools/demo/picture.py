#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws README's picture of a training run from what quickstart.sh left behind.

    picture.py [OUT] [SVG]      OUT: out/quickstart, SVG: docs/images/training.svg

The picture brings its own background, light or dark as the reader's system is, so it does not
depend on the page around it.
"""

import math
import sys
from html import escape
from pathlib import Path

from quickstart import event, rows

WIDTH, HEIGHT = 920, 500
LEFT, RIGHT, TOP, BOTTOM = 56, 892, 92, 308  # of the plot
TABLE = 376
QUESTION, BEFORE, AFTER = 24, 318, 524  # columns of the table
SHOWN = 4

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .card { fill: #ffffff; stroke: #d0d7de } .title { font-size: 16px; font-weight: 600 }
  .soft { fill: #59636e } .small { font-size: 12px }
  .code { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace }
  .grid { stroke: #d8dee4 } .rule { stroke: #d0d7de }
  .train { stroke: #0969da; fill: none; stroke-width: 2; stroke-linejoin: round }
  .mark { fill: #bc4c00 } .held-text { fill: #bc4c00; font-weight: 600 } .train-text { fill: #0969da; font-weight: 600 }
  .wrong { fill: #b3261e } .right { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .card { fill: #0d1117; stroke: #3d444d } .soft { fill: #9198a1 }
    .grid { stroke: #262c34 } .rule { stroke: #3d444d }
    .train { stroke: #58a6ff } .train-text { fill: #58a6ff }
    .mark, .held-text { fill: #f0883e }
    .wrong { fill: #ff7b72 } .right { fill: #3fb950 }
  }
"""


def text(x, y, words, css="", anchor="start"):
    css = f' class="{css}"' if css else ""
    anchor = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.4g}" y="{y:.4g}"{css}{anchor}>{escape(words)}</text>'


def line(x1, y1, x2, y2, css):
    return f'<line x1="{x1:.4g}" y1="{y1:.4g}" x2="{x2:.4g}" y2="{y2:.4g}" class="{css}"/>'


class Plot:
    """Updates by loss, the loss in powers of ten."""

    def __init__(self, updates, low, high):
        self.updates, self.low, self.high = updates, math.log10(low), math.log10(high)

    def x(self, update):
        return LEFT + (RIGHT - LEFT) * update / self.updates

    def y(self, loss):
        return BOTTOM - (BOTTOM - TOP) * (math.log10(loss) - self.low) / (self.high - self.low)

    def path(self, points, css):
        places = " ".join(f"{self.x(u):.1f},{self.y(loss):.1f}" for u, loss in points)
        return f'<polyline points="{places}" class="{css}"/>'


def curve(steps, evals, done):
    losses = [(s["step"], s["loss"]) for s in steps]
    held = [(e["step"], e["loss"]) for e in evals]
    lowest = min(loss for _, loss in losses + held)
    plot = Plot(done["steps"], lowest / 2, max(loss for _, loss in losses + held) * 1.15)
    out = []
    for loss in (0.05, 0.1, 0.3, 1, 3, 10):
        if 10**plot.low < loss < 10**plot.high:
            out += [line(LEFT, plot.y(loss), RIGHT, plot.y(loss), "grid"),
                    text(LEFT - 8, plot.y(loss) + 4, f"{loss:g}", "soft small", "end")]
    seconds = {s["step"]: s["seconds"] for s in steps}
    for update in range(100, done["steps"] - 40, 100):
        out += [text(plot.x(update), BOTTOM + 18, f"{update}", "soft small", "middle"),
                text(plot.x(update), BOTTOM + 33, f"{seconds[update]:.0f} s", "soft small", "middle")]
    out += [text(RIGHT, BOTTOM + 18, f"{done['steps']} updates", "soft small", "end"),
            text(RIGHT, BOTTOM + 33, f"{done['seconds']:.0f} s", "soft small", "end"),
            text(LEFT, TOP - 20, "loss per trained token", "soft small"),
            plot.path(losses, "train")]
    for update, loss in held:
        out.append(f'<circle cx="{plot.x(update):.1f}" cy="{plot.y(loss):.1f}" r="4" class="mark"/>')
    out.append(text(plot.x(0) + 10, plot.y(held[0][1]) - 6, f"{held[0][1]:.1f} held out, before", "held-text"))
    for update, loss in held[1:-1]:
        out.append(text(plot.x(update), plot.y(loss) + 22, f"{loss:.3f}", "held-text", "middle"))
    out.append(text(RIGHT, plot.y(held[-1][1]) + 22, f"{held[-1][1]:.3f} held out", "held-text", "end"))
    named = next(s for s in losses if s[1] < 1)
    out.append(text(plot.x(named[0]) + 12, plot.y(named[1]) + 2, "training", "train-text"))
    return out


def answers(out_folder):
    """Questions of the test that fit the columns, each with another kind of statement."""
    asked = rows(out_folder / "sql/test.jsonl")
    before, after = (rows(out_folder / f"test_{when}.jsonl") for when in ("before", "after"))
    kinds, chosen = set(), []
    for question, b, a in zip(asked, before, after):
        words = question["messages"][0]["content"].split("Question: ")[-1]
        kind = " ".join(w for w in a["expected"].split() if w.isupper())
        if len(words) <= 44 and len(b["answer"]) <= 26 and len(a["answer"]) <= 50 and kind not in kinds:
            kinds.add(kind)
            chosen.append((words, b, a))
    return chosen[:SHOWN]


def table(out_folder):
    shares = {when: event(out_folder / f"test_{when}.jsonl", "eval") for when in ("before", "after")}
    out = [line(QUESTION, TABLE - 24, WIDTH - QUESTION, TABLE - 24, "rule"),
           text(QUESTION, TABLE, "Unseen questions about unseen tables", "soft"),
           text(BEFORE, TABLE, f"before: {shares['before']['exact_match']:.0%} right", "soft"),
           text(AFTER, TABLE, f"after: {shares['after']['exact_match']:.0%} of "
                f"{shares['after']['match_rows']} right to the letter", "soft")]
    for i, (words, before, after) in enumerate(answers(out_folder)):
        y = TABLE + 26 * (i + 1)
        out.append(text(QUESTION, y, words, "small"))
        for x, row in ((BEFORE, before), (AFTER, after)):
            out.append(text(x, y, row["answer"], "code " + ("right" if row["exact_match"] else "wrong")))
    return out


def main(out="out/quickstart", svg="docs/images/training.svg"):
    out = Path(out)
    log = rows(out / "train.jsonl")
    steps, evals = ([r for r in log if r["event"] == name] for name in ("step", "eval"))
    done = event(out / "train.jsonl", "done")
    title = f"./quickstart.sh: the model inside wick learns SQL in {done['seconds']:.0f} seconds on two CPU cores"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
             f'height="{HEIGHT}" role="img">', f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>",
             f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" class="card"/>',
             text(QUESTION, 38, title, "title"), *curve(steps, evals, done), *table(out), "</svg>"]
    Path(svg).parent.mkdir(parents=True, exist_ok=True)
    Path(svg).write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
