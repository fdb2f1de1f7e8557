#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the quick start's task: a table and a question, answered by a statement in SQL.

    make_sql.py --out DIR [--seed N] [--train N] [--everyday X] [--valid N] [--test N]

    user       Table: shipments(id, city, weight)
               Question: How many shipments have weight above 40?
    assistant  SELECT COUNT(*) FROM shipments WHERE weight > 40;

No table name, no schema and no question stands in two of train.jsonl, valid.jsonl and test.jsonl.
Every question has one right statement by construction: columns are named in the order in which
they are selected, text is quoted, and every wording belongs to one shape.

train.jsonl also gets `--everyday` rows, per row of the task, of the base model's own kind (none of
them a question of base_questions.jsonl): without them the adapter answers everything in SQL.
"""

import argparse
import json
import os
import random

import words as w
from make_corpus import Corpus
from tasks import DOWN, UP, value

AGGREGATES = {
    "AVG": ["average", "mean"], "MAX": ["highest", "largest", "maximum"],
    "MIN": ["lowest", "smallest", "minimum"], "SUM": ["total"],
}
NOT_SUMMED = {"age", "year", "level", "rank", "floor", "grade", "rating", "score", "speed", "depth", "height"}
NUMBERS = [c for c in w.NUMBER_COLUMNS if c != "number"]  # "the number of" asks for a count


class Schema:
    """A table, its text and number columns, and how people speak of them."""

    def __init__(self, rng, nouns):
        noun = rng.choice(nouns)
        self.table = rng.choice(w.ADJECTIVES) + "_" + noun if rng.random() < 0.15 else noun
        texts = rng.sample(list(w.TEXT_COLUMNS), rng.randint(1, 2))
        numbers = rng.sample(NUMBERS, rng.randint(1, 2))
        self.kinds = {t: w.TEXT_COLUMNS[t] for t in texts}
        self.texts = texts
        self.numbers = [rng.choice(w.ADJECTIVES) + "_" + n if rng.random() < 0.2 else n for n in numbers]
        self.columns = self.texts + self.numbers
        rng.shuffle(self.columns)

    def text(self):
        return f"{self.table}(id, {', '.join(self.columns)})"


def said(name):
    return name.replace("_", " ")


def condition(rng, s, column):
    """(English after 'with' / after 'where' / after 'have', SQL)"""
    c = said(column)
    if column in s.kinds:
        v = value(rng, s.kinds[column])
        return f"{c} {v}", f"{c} is {v}", f"the {c} {v}", f"{column} = '{v}'"
    n = w.number(rng)
    phrases, sign = rng.choice([(UP, ">"), (DOWN, "<"), (["equal to", "exactly"], "=")])
    p = rng.choice(phrases)
    return f"{c} {p} {n}", f"{c} {w.be(column)} {p} {n}", f"{c} {p} {n}", f"{column} {sign} {n}"


def clause(rng, s, verb="with", shown=""):
    """A condition, or now and then two: (' with weight above 40', ' WHERE weight > 40')

    A column in `shown` is not asked about as well where another one is left.
    """
    form = rng.randrange(3)
    lead = [f" {verb} ", " where ", " whose "][form]
    index = (2 if verb == "have" else 0) if form == 0 else 1
    others = [c for c in s.columns if c not in shown.split(", ")] or s.columns
    first = condition(rng, s, rng.choice(others))
    if rng.random() < 0.25 and len(s.columns) > 1:
        used = first[3].split()[0]
        second = condition(rng, s, rng.choice([c for c in s.columns if c != used]))
        joined = f"{first[index]} and {second[index]}"
        where = f" WHERE {first[3]} AND {second[3]}"
    else:
        joined, where = first[index], f" WHERE {first[3]}"
    if verb == "have" and form:
        return f" are there{lead}{joined}", where
    return f"{lead}{joined}", where


def listing(rng, s):
    """One, two or three columns: ('the city and weight', 'city, weight')"""
    n = rng.choices([1, 2, 3], [6, 4, 1])[0]
    columns = rng.sample(s.columns, min(n, len(s.columns)))
    return "the " + w.join_and(said(c) for c in columns), ", ".join(columns)


def aggregate(rng, column):
    """A function that makes sense for the column, and its names in English."""
    last = 3 if column.split("_")[-1] in NOT_SUMMED else 4
    return rng.choice(list(AGGREGATES.items())[:last])


def ask_list(rng):
    return rng.choice(["Show", "List", "Give me", "Find"])


def q_all(rng, s):
    t = said(s.table)
    if rng.random() < 0.25:
        return rng.choice([f"Show everything about all {t}.", f"Show all {t}.", f"List all {t}."]), \
            f"SELECT * FROM {s.table};"
    english, sql = listing(rng, s)
    return f"{ask_list(rng)} {english} of all {t}.", f"SELECT {sql} FROM {s.table};"


def q_where(rng, s):
    t = said(s.table)
    if rng.random() < 0.2:
        english, where = clause(rng, s)
        return rng.choice([f"Show everything about {t}{english}.", f"Show all {t}{english}."]), \
            f"SELECT * FROM {s.table}{where};"
    columns, sql = listing(rng, s)
    english, where = clause(rng, s, shown=sql)
    return f"{ask_list(rng)} {columns} of {t}{english}.", f"SELECT {sql} FROM {s.table}{where};"


def q_count(rng, s):
    t = said(s.table)
    if rng.random() < 0.2:
        return rng.choice([f"How many {t} are there?", f"Count all {t}.", f"What is the number of {t}?"]), \
            f"SELECT COUNT(*) FROM {s.table};"
    if rng.random() < 0.7:
        english, where = clause(rng, s, "have")
        return f"How many {t}{english}?", f"SELECT COUNT(*) FROM {s.table}{where};"
    english, where = clause(rng, s)
    return rng.choice([f"Count the {t}{english}.", f"What is the number of {t}{english}?"]), \
        f"SELECT COUNT(*) FROM {s.table}{where};"


def q_aggregate(rng, s):
    t, c = said(s.table), rng.choice(s.numbers)
    function, names = aggregate(rng, c)
    head = rng.choice(["What is the", "Find the", "Give me the"])
    tail = "?" if head == "What is the" else "."
    if rng.random() < 0.5:
        return f"{head} {rng.choice(names)} {said(c)} of all {t}{tail}", f"SELECT {function}({c}) FROM {s.table};"
    english, where = clause(rng, s, shown=c)
    return f"{head} {rng.choice(names)} {said(c)} of {t}{english}{tail}", \
        f"SELECT {function}({c}) FROM {s.table}{where};"


def q_top(rng, s):
    t, c, n = said(s.table), rng.choice(s.numbers), rng.randint(2, 20)
    english, sql = listing(rng, s)
    word, order = rng.choice([("highest", " DESC"), ("largest", " DESC"), ("lowest", ""), ("smallest", "")])
    return f"{ask_list(rng)} {english} of the {n} {t} with the {word} {said(c)}.", \
        f"SELECT {sql} FROM {s.table} ORDER BY {c}{order} LIMIT {n};"


def q_sorted(rng, s):
    t, c = said(s.table), rng.choice(s.columns)
    english, sql = listing(rng, s)
    down, order = rng.choice([("", ""), (" in descending order", " DESC")])
    verb = rng.choice(["sorted by", "ordered by"])
    return f"{ask_list(rng)} {english} of all {t} {verb} {said(c)}{down}.", \
        f"SELECT {sql} FROM {s.table} ORDER BY {c}{order};"


def q_distinct(rng, s):
    t, c = said(s.table), rng.choice(s.columns)
    return rng.choice([
        f"List the different values of {said(c)} in {t}.", f"Which different values of {said(c)} do the {t} have?",
        f"Show each {said(c)} of the {t} only once."]), f"SELECT DISTINCT {c} FROM {s.table};"


def q_group(rng, s):
    t, c = said(s.table), rng.choice(s.texts)
    each = rng.choice(["for each", "per"])
    if rng.random() < 0.5:
        return rng.choice([f"How many {t} are there {each} {said(c)}?", f"Count the {t} {each} {said(c)}."]), \
            f"SELECT {c}, COUNT(*) FROM {s.table} GROUP BY {c};"
    n = rng.choice(s.numbers)
    function, names = aggregate(rng, n)
    return rng.choice([f"What is the {rng.choice(names)} {said(n)} of the {t} {each} {said(c)}?",
                       f"Show the {rng.choice(names)} {said(n)} of the {t} {each} {said(c)}."]), \
        f"SELECT {c}, {function}({n}) FROM {s.table} GROUP BY {c};"


SHAPES = [(q_all, 2), (q_where, 4), (q_count, 4), (q_aggregate, 4), (q_top, 3), (q_sorted, 2),
          (q_distinct, 2), (q_group, 3)]


def split_rows(rng, nouns, count):
    rows, seen = [], set()
    while len(rows) < count:
        s = Schema(rng, nouns)
        shape = rng.choices([f for f, _ in SHAPES], [n for _, n in SHAPES])[0]
        question, sql = shape(rng, s)
        if question in seen:
            continue
        seen.add(question)
        rows.append({"messages": [
            {"role": "user", "content": f"Table: {s.text()}\nQuestion: {question}"},
            {"role": "assistant", "content": sql}]})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=int, default=3000)
    parser.add_argument("--everyday", type=float, default=0.3, help="rows of everyday talk per task row")
    parser.add_argument("--valid", type=int, default=100)
    parser.add_argument("--test", type=int, default=300)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    rng = random.Random(args.seed)
    nouns = list(w.PLURALS)
    rng.shuffle(nouns)
    shares = {"test": (nouns[:30], args.test), "valid": (nouns[30:42], args.valid),
              "train": (nouns[42:], args.train)}
    for name, (share, count) in shares.items():
        rows = split_rows(rng, share, count)
        if name == "train":
            corpus = Corpus(args.seed + 1000)
            rows += [corpus.chat_row() for _ in range(int(count * args.everyday))]
            rng.shuffle(rows)
        with open(os.path.join(args.out, name + ".jsonl"), "w", encoding="utf-8") as f:
            for row in rows:
                f.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
