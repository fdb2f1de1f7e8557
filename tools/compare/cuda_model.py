# SPDX-License-Identifier: Apache-2.0
"""What every engine of the comparison on a GPU reads: weights, adapters, ids.

FOLDER/<shape>/model                     weights and config.json of wick bench --save-model, and a
                                         tokenizer whose every word is one token
FOLDER/<shape>/adapter-r<rank>-<names>   wick bench --save-adapter: A and B both non-zero
FOLDER/<shape>/data-<batch>x<tokens>     rows that ten steps can learn from: train.jsonl for wick
                                         train, ids.json with the same ids
Timed steps take the random ids of wick bench, which bench_ids() draws here as src/bench/bench.h
says.
"""

import json
import random
from pathlib import Path

from word_tokenizer import write_tokenizer

WORDS = 2048
STEPS = 10  # whose losses are compared


def mix_key(key, word):
    """wick's hash of a key and a word."""
    mask = (1 << 64) - 1
    z = (key + 0x9E3779B97F4A7C15 * (word + 1)) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def bench_ids(batch, rows, length, vocab, seed=0):
    """`rows` lists of `length` ids of wick bench's batch; a row is its tokens and one more."""
    key = mix_key(seed, batch)
    return [[mix_key(key, row * length + p) % vocab for p in range(length)] for row in range(rows)]


def bench_prompt(tokens, vocab):
    return [bench_ids(0, 1, tokens + 1, vocab)[0][:-1]]


def read_config(model):
    return json.loads((Path(model) / "config.json").read_text())


def word_ids(vocab):
    """The id of each word: spread over the vocabulary, above the bytes."""
    count = min(WORDS, (vocab - 300) // 2)
    return [300 + w * ((vocab - 300) // count) for w in range(count)]


def make_model(folder, run_wick, source):
    """`source`: wick's flags that name the weights, such as --shape X. run_wick(words) runs it."""
    model = folder / "model"
    if not (model / "tokenizer.json").exists():  # which is written last
        # The table is a cheap one; writing the weights is what this is for.
        run_wick(["bench", "ops", *source, "--save-model", model, "--iters", "1", "--warmup", "0"])
        config = read_config(model)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            config.pop(name, None)  # a row is its ids and nothing else
        (model / "config.json").write_text(json.dumps(config, indent=1))
    # Also where an earlier version of this wrote it.
    write_tokenizer(model, word_ids(read_config(model)["vocab_size"]))
    return model


def make_adapter(folder, run_wick, rank, targets):
    adapter = folder / f"adapter-r{rank}-{'-'.join(targets)}"
    if not (adapter / "adapter_config.json").exists():
        run_wick(["bench", "train", "--model", folder / "model", "--save-adapter", adapter,
                  "--rank", str(rank), "--targets", ",".join(targets), "--batch-size", "1",
                  "--seq", "16", "--iters", "1", "--warmup", "0"])
    return adapter


def make_rows(folder, rows, tokens, prompt):
    """Ten batches of rows with tokens + 1 ids, so that every one of `tokens` is supervised, and a
    prompt. Words are frequent and rare, as in text."""
    data = folder / f"data-{rows}x{tokens}"
    if (data / "ids.json").exists():
        return data
    ids = word_ids(read_config(folder / "model")["vocab_size"])
    rng = random.Random(22)
    share = [1 / (w + 1) for w in range(len(ids))]
    draw = lambda count: rng.choices(range(len(ids)), share, k=count)
    words = [draw(tokens + 1) for _ in range((STEPS + 1) * rows)]
    start = draw(prompt)
    data.mkdir(parents=True, exist_ok=True)
    with open(data / "train.jsonl", "w") as file:
        for row in words:
            file.write(json.dumps({"text": "".join(f"<{w}>" for w in row)}) + "\n")
    contents = {"rows": [[ids[w] for w in row] for row in words],
                "prompt": {"ids": [ids[w] for w in start],
                           "text": "".join(f"<{w}>" for w in start)}}
    (data / "ids.json").write_text(json.dumps(contents))
    return data
