#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the embedded model's tokenizer and writes it in Hugging Face's format.

    train_tokenizer.py --data DIR/train.jsonl --out MODEL [--vocab-size 3072]

A byte-level BPE in two passes. The first learns pieces of words without the space before them;
the second glues a space to the pieces that start words. Ranks are in that order, so a word is cut
the same way after a space, a quote or a bracket, and copying "Oslo" into 'Oslo' changes one piece.
The split keeps apostrophes from taking letters ('silver' is a quote and a word, never 's + ilver)
and gives every digit its own piece.
"""

import argparse
import json
import os
from collections import Counter, defaultdict

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MAX_LENGTH = 512
FREQUENT = 100

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['role'] == 'assistant' %}"
    "{%- generation %}{{- message['content'] + '<|im_end|>' }}{%- endgeneration %}"
    "{%- else %}"
    "{{- message['content'] + '<|im_end|>' }}"
    "{%- endif %}"
    "{{- '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- endif %}"
)


def byte_alphabet():
    """GPT-2's printable stand-in for every byte."""
    keep = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


def split(text):
    """SPLIT, by hand: the standard library's expressions know no \\p{L}."""
    out, i, n = [], 0, len(text)

    def kind(c):
        return "s" if c.isspace() else "l" if c.isalpha() else "n" if c.isnumeric() else "o"

    while i < n:
        j = i + 1 if text[i] == " " and i + 1 < n and not text[i + 1].isspace() else i
        k = kind(text[j])
        if k == "s":
            while j < n and text[j].isspace():
                j += 1
            if j < n and j - i > 1:
                j -= 1
        elif k == "n":
            j += 1
        else:
            while j < n and kind(text[j]) == k:
                j += 1
        out.append(text[i:j])
        i = j
    return out


def texts_of(path):
    with open(path, encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            if "text" in row:
                yield row["text"]
            else:
                for message in row["messages"]:
                    yield message["role"] + "\n"
                    yield message["content"]


def count_words(path):
    chunks = Counter(texts_of(path))
    words = Counter()
    for text, times in chunks.items():
        for piece in split(text):
            words[piece] += times
    return words


def learn_merges(words, limit, min_count):
    """Plain BPE over {tuple of symbols: count}: [(left, right)], and the words cut into pieces."""
    symbols = [list(word) for word in words]
    counts = list(words.values())
    pairs, where = Counter(), defaultdict(set)
    for i, parts in enumerate(symbols):
        for pair in zip(parts, parts[1:]):
            pairs[pair] += counts[i]
            where[pair].add(i)
    merges = []
    while len(merges) < limit and pairs:
        best = max(pairs, key=lambda p: (pairs[p], p))
        if pairs[best] < min_count:
            break
        merges.append(best)
        for i in where.pop(best):
            parts = symbols[i]
            for pair in zip(parts, parts[1:]):
                pairs[pair] -= counts[i]
                if pairs[pair] <= 0:
                    del pairs[pair]
            merged, k = [], 0
            while k < len(parts):
                if k + 1 < len(parts) and (parts[k], parts[k + 1]) == best:
                    merged.append(parts[k] + parts[k + 1])
                    k += 2
                else:
                    merged.append(parts[k])
                    k += 1
            symbols[i] = merged
            for pair in zip(merged, merged[1:]):
                pairs[pair] += counts[i]
                where[pair].add(i)
    return merges, list(zip(symbols, counts))


def train(words, vocab_size):
    """(vocabulary, merges): inner pieces first, then the same pieces behind a space."""
    alphabet = byte_alphabet()
    encode = lambda s: "".join(alphabet[b] for b in s.encode("utf-8"))
    space = alphabet[0x20]
    counts, behind_space = Counter(), Counter()
    for word, times in words.items():
        if word.isspace():
            continue
        bare = tuple(encode(word.lstrip(" ")))
        counts[bare] += times
        if word.startswith(" "):
            behind_space[bare] += times
    # Real words should become whole pieces before invented ones get their syllables.
    inner = {bare: round(100 * times**0.5) if times >= FREQUENT else 2 * times
             for bare, times in counts.items()}

    room = vocab_size - 256 - len(SPECIALS)
    merges, cut = learn_merges(inner, room * 29 // 50, 1)
    pieces = {"".join(parts): parts for parts, _ in cut}
    first = Counter()
    for bare, times in behind_space.items():
        first[pieces["".join(bare)][0]] += times
    ranked = sorted(first.items(), key=lambda x: (-x[1], x[0]))
    merges += [(space, piece) for piece, _ in ranked[: room - len(merges)]]

    vocab = {}
    for token in [*sorted(alphabet.values()), *(a + b for a, b in merges)]:
        vocab.setdefault(token, len(vocab))
    return vocab, merges


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=1)
        f.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="train.jsonl of make_corpus.py")
    parser.add_argument("--out", required=True, help="model folder to write to")
    parser.add_argument("--vocab-size", type=int, default=3072)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    vocab, merges = train(count_words(args.data), args.vocab_size)
    added = []
    for token in SPECIALS:
        added.append({"id": len(vocab) + len(added), "content": token, "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False, "special": True})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    write_json(os.path.join(args.out, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [list(m) for m in merges]}})
    ids = {a["content"]: a["id"] for a in added}
    write_json(os.path.join(args.out, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_LENGTH,
        "added_tokens_decoder": {str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in added},
        "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE})
    write_json(os.path.join(args.out, "special_tokens_map.json"),
               {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    write_json(os.path.join(args.out, "generation_config.json"), {
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], "pad_token_id": ids["<|endoftext|>"],
        "do_sample": False, "max_new_tokens": 128})
    print(f"{len(vocab) + len(added)} tokens, {len(merges)} merges")


if __name__ == "__main__":
    main()
