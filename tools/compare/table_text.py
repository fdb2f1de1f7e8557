# SPDX-License-Identifier: Apache-2.0
"""Numbers and tables of docs/benchmarks.md, for table.py and table_cuda.py."""


def quantile(values, share):
    values = sorted(values)
    at = share * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def median(values):
    return quantile(values, 0.5)


def number(value):
    """Three significant digits, thousands with commas."""
    if value == 0:
        return "0"
    for limit, digits in ((100, 0), (10, 1), (1, 2), (0.1, 3)):
        if abs(value) >= limit:
            return f"{value:,.{digits}f}"
    return f"{value:.2g}"


def size(count):
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{number(count / 2**20)} MiB"


def table(head, rows, left=1):
    marks = ["---" if i < left else "---:" for i in range(len(head))]
    lines = [head, marks, *rows]
    return "\n".join("| " + " | ".join(str(c) for c in line) + " |" for line in lines) + "\n"
