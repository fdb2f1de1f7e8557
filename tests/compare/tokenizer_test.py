#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/compare/word_tokenizer.py: wick reads the ids that its peers are given. WICK: the program."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "compare"))

from cuda_model import word_ids
from word_tokenizer import write_tokenizer


class TokenizerTest(unittest.TestCase):

    def test_words_are_their_ids(self):
        ids = word_ids(151936)
        with tempfile.TemporaryDirectory() as folder:
            write_tokenizer(Path(folder), ids)
            text = "".join(f"<{w}>" for w in range(len(ids)))
            made = subprocess.run([os.environ["WICK"], "tokenize", "--model", folder],
                                  input=text, capture_output=True, text=True, check=True)
        self.assertEqual([int(word) for word in made.stdout.split()], ids)


if __name__ == "__main__":
    unittest.main()
