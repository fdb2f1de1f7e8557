# SPDX-License-Identifier: Apache-2.0
"""A tokenizer whose texts and ids are the same thing: every word is an added token."""

import json


def write_tokenizer(folder, ids):
    """Word w, written <w>, is the one token ids[w]; bytes are below 256."""
    # GPT-2's printable stand-ins for bytes, the alphabet of byte-level BPE.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    alphabet = {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(others)}}
    # Added tokens keep an id only where the model has it, too; others are numbered one by one.
    words = {f"<{w}>": token for w, token in enumerate(ids)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
             "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": token, "content": word, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": False}
                         for word, token in words.items()],
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {**alphabet, **words}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32768}))
