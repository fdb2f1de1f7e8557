#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/compare/cuda_*.py without a card: peers that hang or err, resuming, ids, the page."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "compare"))

import cuda_cases
import cuda_model
import cuda_process
import cuda_run
import table
import table_cuda

SERVE = f"import sys\nsys.path.insert(0, {str(cuda_run.case_list.HERE)!r})\nimport cuda_peer\n"


def case(engine, ms, **more):
    return {"id": engine, "engine": engine, "package": engine, "bits": "bf16", "batch": 1,
            "configuration": "x", "rounds": [{"ms": [m], **more} for m in ms]}


def group(cases, kind="train", **more):
    return {"name": kind, "kind": kind, "title": "Work", "batch": 1, "seq": 512, "commit": "abc",
            "changed": False, "card": {"name": "Card", "driver": "1"}, "quick": False, "rounds": 2,
            "versions": {"wick": "1"}, "started": "2026-01-01T00:00:00Z", "cases": cases, **more}


def results(*groups):
    return {"format": 2, "groups": {g["name"]: g for g in groups}, "bench": {},
            "machine": {"cpu": "C", "cores": 2, "system": "Linux"}}


class PeerTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def peer(self, program):
        peer = cuda_process.Peer([sys.executable, "-S", "-B", "-c", program], {"steps": 2}, {},
                                 Path(self.folder.name) / "log")
        self.addCleanup(peer.close)
        self.addCleanup(peer.process.stdout.close)
        self.addCleanup(peer.process.stdin.close)
        return peer

    def test_a_peer_answers_in_turn_and_its_noise_is_no_answer(self):
        peer = self.peer(SERVE + "class E:\n"
                         "  def __init__(self, job): self.facts = job; print('noise')\n"
                         "  def block(self, words): print('noise'); return {'got': words}\n"
                         "cuda_peer.serve(E)")
        self.assertEqual(peer.answer(30), {"steps": 2})
        self.assertEqual(peer.block({"a": 1}, 30), {"got": {"a": 1}})
        self.assertEqual(peer.block({"a": 2}, 30), {"got": {"a": 2}})

    def test_a_peer_that_hangs_is_ended(self):
        peer = self.peer("import time; time.sleep(600)")
        with self.assertRaisesRegex(cuda_process.PeerError, "stopped after"):
            peer.answer(0.2)
        self.assertIsNotNone(peer.process.poll())

    def test_an_error_is_its_last_line(self):
        peer = self.peer("raise SystemExit('out of memory')")
        with self.assertRaisesRegex(cuda_process.PeerError, "^out of memory$"):
            peer.answer(30)

    def test_a_crash_names_its_signal(self):
        peer = self.peer("import os; os.abort()")
        with self.assertRaisesRegex(cuda_process.PeerError, "SIGABRT"):
            peer.answer(30)


class RunTest(unittest.TestCase):
    def test_losses_must_agree_closely_before_anything_is_learnt(self):
        self.assertIsNone(cuda_run.wrong_losses([10.01, 9.05], [10.0, 9.0])[1])
        self.assertIn("first loss", cuda_run.wrong_losses([10.1, 9.0], [10.0, 9.0])[1])
        self.assertIn("losses differ", cuda_run.wrong_losses([10.0, 9.5], [10.0, 9.0])[1])
        self.assertIn("expected 2", cuda_run.wrong_losses([10.0], [10.0, 9.0])[1])
        self.assertIsNotNone(cuda_run.wrong_losses([float("nan")], [10.0])[1])

    def test_a_first_token_may_lie_deeper_with_fewer_bits(self):
        g = cuda_cases.Group("decode", "decode", "", [])
        wanted = {"top": list(range(20))}
        for bits, token, right in (("bf16", 3, True), ("bf16", 4, False), ("4", 19, True)):
            wrong = cuda_run.check(g, cuda_cases.wick(bits), {}, {"first_token": token}, wanted)
            self.assertEqual(wrong is None, right)

    def test_names_are_unique_and_every_group_has_wick_first(self):
        groups = cuda_cases.all_groups()
        self.assertEqual(len(groups), len({g.name for g in groups}))
        for g in groups:
            self.assertEqual(g.cases[0].engine, "wick")
            self.assertEqual(len(g.cases), len({c.id for c in g.cases}))

    def test_only_and_quick_choose(self):
        groups = {g.name: g for g in cuda_cases.all_groups()}
        names = lambda only, quick, g: [c.id for c in groups[g].cases
                                        if cuda_run.chosen(only, quick, groups[g], c)]
        self.assertEqual(names("*/torch-eager", False, "train-4x512"), ["torch-eager"])
        self.assertEqual(names("decode", False, "train-4x512"), [])
        self.assertNotIn("torch-onegraph", names("*", True, "train-1x512"))
        self.assertIn("torch-onegraph", names("train-1x512/torch-onegraph", True, "train-1x512"))
        self.assertEqual(names("*", True, "train-7b"), [])
        self.assertIn("wick-bf16", names("train-7b", True, "train-7b"))

    def test_resuming_keeps_what_was_measured_with_the_same_things(self):
        g = cuda_cases.Group("decode", "decode", "", [cuda_cases.wick(), cuda_cases.wick("8")])
        identity = {"commit": "abc", "versions": {}}
        before = cuda_run.group_state(None, g, g.cases, identity, False)
        before["cases"][0]["rounds"].append({"ms": [1.0]})
        before["cases"][1]["rounds"].append({"ms": [2.0]})
        count = lambda state: [len(r["rounds"]) for r in state["cases"]]
        again = lambda ident, cases, resume: count(
            cuda_run.group_state(json.loads(json.dumps(before)), g, cases, ident, resume))
        self.assertEqual(again(identity, g.cases, True), [1, 1])
        self.assertEqual(again(identity, g.cases, False), [0, 0])
        self.assertEqual(again(identity, g.cases[:1], False), [0, 1])
        self.assertEqual(again({**identity, "commit": "def"}, g.cases, True), [0, 0])

    def test_lines_of_wick_bench_are_read(self):
        g = cuda_cases.Group("decode", "decode", "", [])
        lines = [{"bench": "decode", "what": "token", "ms": 2, "ms_p10": 1, "ms_p90": 3, "runs": 9,
                  "shape": "some/folder"},
                 {"bench": "generate", "what": "first token, greedy", "ms": 5, "ms_p10": 4, "ms_p90": 6}]
        found = cuda_cases.read_wick_turn(g, "\n".join(map(json.dumps, lines)))
        self.assertEqual((found["ms"], found["first_ms"]), ([1, 2, 3], [4, 5, 6]))
        self.assertEqual(found["line"]["shape"], g.shape)


class ModelTest(unittest.TestCase):
    def test_ids_are_those_of_wick_bench(self):
        # The first two are the published outputs of SplitMix64 with seed 0.
        self.assertEqual(cuda_model.mix_key(0, 0), 0xE220A8397B1DCDAF)
        self.assertEqual(cuda_model.mix_key(0, 1), 0x6E789E6AA1B965F4)
        rows = cuda_model.bench_ids(3, 2, 5, 1000)
        key = cuda_model.mix_key(0, 3)
        self.assertEqual(rows[1][2], cuda_model.mix_key(key, 7) % 1000)

    def test_rows_and_texts_are_the_same_ids(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "model").mkdir()
            (folder / "model" / "config.json").write_text('{"vocab_size": 3072}')
            data = cuda_model.make_rows(folder, 2, 8, 4)
            ids = json.loads((data / "ids.json").read_text())
            texts = [json.loads(x)["text"] for x in (data / "train.jsonl").read_text().splitlines()]
            words = cuda_model.word_ids(3072)
            read = lambda text: [words[int(w)] for w in text.strip("<>").split("><")]
            self.assertEqual([read(t) for t in texts], ids["rows"])
            self.assertEqual(len(ids["rows"]), 22)
            self.assertEqual(read(ids["prompt"]["text"]), ids["prompt"]["ids"])
            self.assertLess(max(words), 3072)


class TableTest(unittest.TestCase):
    def test_the_strongest_peer_is_named_and_ratios_are_by_round(self):
        text = table.page([results(group([case("wick", [2, 4]), case("MLX", [9, 9]),
                                          case("PyTorch", [6, 8])]))])
        self.assertIn("| Work | 3.00 ms | PyTorch, x | 7.00 ms | 2.50× (2.00–3.00) |", text)
        self.assertIn("## Card", text)

    def test_first_tokens_have_a_row_of_their_own(self):
        rows = table_cuda.headline([group([case("wick", [1], first_ms=[2]),
                                           case("A", [5], first_ms=[9]),
                                           case("B", [6], first_ms=[8])], "decode")])
        self.assertEqual([(r[0], r[2]) for r in rows],
                         [("Work", "A, x"), ("First token, prompt 128", "B, x")])

    def test_what_was_left_out_is_said(self):
        text = table.page([results(group([{**case("MLX", []), "skipped": "not run: no MLX"}]))])
        self.assertIn("Left out: MLX, x (not run: no MLX).", text)
        self.assertIn("Nothing was measured.", text)


if __name__ == "__main__":
    unittest.main()
