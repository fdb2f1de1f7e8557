#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the text from which wick's embedded model is trained.

    make_corpus.py --out DIR [--seed N] [--scale X]

DIR/train.jsonl           stories as {"text": ...}, conversations as {"messages": [...]}
DIR/valid.jsonl           the same mix, no row of train.jsonl
DIR/base_questions.jsonl  questions with one right answer, none of them asked in train.jsonl

Scale 1 is about 12 million tokens. The corpus holds no statement in SQL.
"""

import argparse
import json
import os
import random
import zlib

import stories
import tasks
import words as w
from world import ALWAYS, PEOPLE, VILLAGE, facts

ROWS_AT_SCALE_1 = 180_000
VALID_ROWS = 500
BASE_FACTS = 120
BASE_TASKS = 180

SYSTEMS = [
    "You are a helpful friend who answers in few words.", "Answer the question.",
    f"You know the village {VILLAGE} and its people.", "Be short and clear.",
]


def held_out(question):
    """Whether a question is kept for base_questions.jsonl: the same ones for every seed."""
    return zlib.crc32(question.encode()) % 16 == 0


def split_facts():
    """(train, held out): of a fact that can be asked in three ways or more, one may be held out."""
    train, held = [], []
    for questions, answer in facts():
        may = len(questions) > 2 and answer not in ALWAYS
        out = [q for q in questions if held_out(q)][:1] if may else []
        train.append([(q, answer) for q in questions if q not in out])
        held += [(q, answer) for q in out]
    return train, held


def conversation(turns, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    for user, assistant in turns:
        messages.append({"role": "user", "content": user})
        messages.append({"role": "assistant", "content": assistant})
    return {"messages": messages}


class Corpus:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.facts, self.held_facts = split_facts()
        self.task_functions = [t for t, _ in tasks.TASKS]
        self.task_shares = [share for _, share in tasks.TASKS]

    def task(self, held=False):
        while True:
            task = self.rng.choices(self.task_functions, self.task_shares)[0]
            turns = task(self.rng)
            if held:
                turns = turns[:1]
            asked = turns if task in tasks.ALONE else turns[:1]
            if any(held_out(question) for question, _ in asked) == held:
                return turns

    def story_row(self):
        rng = self.rng
        r = rng.random()
        if r < 0.22:
            return {"text": stories.list_text(rng)}
        if r < 0.34:
            return {"text": stories.rule_text(rng)}
        if r < 0.42:
            question, answer = self.rng.choice(self.rng.choice(self.facts))
            return {"text": f"Question: {question} Answer: {answer}"}
        if r < 0.48:
            lines = [f[0][1] for f in rng.choices(self.facts, k=3)]
            plain = [x for x in lines if x.endswith(".") and not x.endswith(("bigger.", "smaller."))]
            return {"text": " ".join(plain) or stories.story(rng)}
        return {"text": stories.story(rng)}

    def tale_turns(self):
        rng = self.rng
        name = rng.choice(PEOPLE)[0] if rng.random() < 0.7 else rng.choice(w.FIRST_NAMES)
        ask = rng.choice(["Tell me a story about {}.", "Tell me a short story about {}.",
                          "Write a story about {}.", "Do you know a story about {}?"])
        return [(ask.format(name), stories.story(rng, name))]

    def fact_turns(self):
        return [self.rng.choice(self.rng.choice(self.facts)) for _ in range(self.rng.randint(1, 4))]

    def row(self):
        return self.story_row() if self.rng.random() < 0.17 else self.chat_row()

    def chat_row(self):
        rng = self.rng
        r = rng.random()
        if r < 0.06:
            turns = self.tale_turns()
        elif r < 0.28:
            turns = self.fact_turns()
        else:
            turns = self.task()
        return conversation(turns, rng.choice(SYSTEMS) if rng.random() < 0.06 else None)


def write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    corpus = Corpus(args.seed)
    train = [corpus.row() for _ in range(int(ROWS_AT_SCALE_1 * args.scale))]
    seen_rows = {json.dumps(r) for r in train}

    valid = []
    while len(valid) < VALID_ROWS:
        row = corpus.row()
        if json.dumps(row) not in seen_rows:
            valid.append(row)

    # Drawn apart from the rows, so that they are the same at every scale.
    corpus.rng = random.Random(f"base questions {args.seed}")
    corpus.rng.shuffle(corpus.held_facts)
    questions = dict(corpus.held_facts[:BASE_FACTS])
    while len(questions) < BASE_FACTS + BASE_TASKS:
        questions.setdefault(*corpus.task(held=True)[0])

    write(os.path.join(args.out, "train.jsonl"), train)
    write(os.path.join(args.out, "valid.jsonl"), valid)
    write(os.path.join(args.out, "base_questions.jsonl"), [conversation([qa]) for qa in questions.items()])


if __name__ == "__main__":
    main()
