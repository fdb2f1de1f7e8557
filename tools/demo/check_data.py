#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the generated data promises; ends with status 1 and the first offence otherwise.

    check_data.py --base DIR --sql DIR

The base corpus holds no SQL, no base question was asked in any training row, every question has one
answer, and no table, schema or question of the task stands in two of its splits.
"""

import argparse
import json
import os
import re
import sys

# Within one sentence: two signs side by side may read SELECT A SEAT. FROM DAY TO NIGHT.
STATEMENT = re.compile(r"\bSELECT\b[^.?!]*\bFROM\b|\bWHERE\b[^.?!]*[=<>]|\b(COUNT|AVG|SUM|MIN|MAX)\(")


def rows(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def users(row):
    return [m["content"] for m in row.get("messages", []) if m["role"] == "user"]


def fail(message):
    sys.exit("check_data: " + message)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True)
    parser.add_argument("--sql", required=True)
    args = parser.parse_args()

    train, valid = rows(args.base, "train.jsonl"), rows(args.base, "valid.jsonl")
    for row in train + valid:
        for text in [row["text"]] if "text" in row else [m["content"] for m in row["messages"]]:
            if STATEMENT.search(text):
                fail(f"the base corpus holds a statement: {text!r}")
    questions = {users(r)[0] for r in rows(args.base, "base_questions.jsonl")}
    splits = {name: rows(args.sql, name + ".jsonl") for name in ("train", "valid", "test")}
    for row in train + splits["train"]:
        for text in users(row):
            if text in questions:
                fail(f"a base question is trained: {text!r}")

    seen = {}
    for name, split in splits.items():
        for row in split:
            user = users(row)[0]
            if not user.startswith("Table: "):
                continue
            schema, question = user.split("\nQuestion: ")
            keys = ("table " + schema.split("(")[0], "schema " + schema, "question " + question)
            for key in keys:
                if seen.setdefault(key, name) != name:
                    fail(f"{key!r} stands in {seen[key]} and in {name}")
            answer = row["messages"][-1]["content"]
            if seen.setdefault("answer " + user, answer) != answer:
                fail(f"two answers to {user!r}")
    print(f"base: {len(train)} rows, {len(questions)} questions; "
          + "; ".join(f"{name}: {len(split)} rows" for name, split in splits.items()) + ": all as promised")


if __name__ == "__main__":
    main()
