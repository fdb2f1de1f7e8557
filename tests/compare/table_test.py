#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/compare/table.py: quantiles, ratios by round, the choice of the strongest peer."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "compare"))

import machine
import table


def case(engine, bits, rounds, group="train", **more):
    return {"id": f"{group}/{engine}-{bits}", "group": group, "engine": engine, "package": engine,
            "bits": bits, "configuration": "x", "isa": "avx2", "notes": [],
            "rounds": [{"ms": ms, "peak_bytes": 2**30, "steal": 0.0, "load": 0.5} for ms in rounds],
            **more}


def results(cases):
    return {"format": 1, "commit": "abc", "changed": False, "threads": 2, "quick": False,
            "versions": {"wick": "1"}, "started": "2026-01-01T00:00:00Z", "rounds": 2,
            "machine": {"cpu": "C", "family": "26/2", "isa": "avx2", "cores": 2, "memory_bytes": 2**34,
                        "system": "Linux", "flags": ["avx2"], "peak_gflops": 200.0},
            "work": {"train": {"gflop": 1000.0, "tokens": 512},
                     "prefill": {"gflop": 300.0, "tokens": 512},
                     "decode": {"gflop": 1.0, "tokens": 1, "weights": 5e8}},
            "reference_losses": [], "cases": cases, "bench": {}}


class TableTest(unittest.TestCase):
    def test_quantile_is_linear(self):
        self.assertEqual(table.quantile([3, 1, 2], 0.5), 2)
        self.assertAlmostEqual(table.quantile([0, 10], 0.1), 1)

    def test_numbers_have_three_digits(self):
        shown = [table.number(x) for x in (1234.5, 12.345, 1.2345, 0.12345, 0.0123, 0)]
        self.assertEqual(shown, ["1,234", "12.3", "1.23", "0.123", "0.012", "0"])

    def test_ratio_is_taken_within_a_round(self):
        own = case("wick", "f32", [[100, 100, 100], [200]])
        peer = case("PyTorch", "f32", [[300], [400]])
        self.assertEqual(table.ratios(peer, own), (2.5, 2.0, 3.0))

    def test_ratio_of_unequal_rounds_uses_those_that_both_have(self):
        own = case("wick", "f32", [[100]])
        peer = case("PyTorch", "f32", [[150], [1000]])
        self.assertEqual(table.ratios(peer, own), (1.5, 1.5, 1.5))

    def test_headline_names_the_strongest_peer_and_never_mlx(self):
        cases = [case("wick", "bf16", [[10]]), case("wick", "f32", [[50]]),
                 case("PyTorch", "bf16", [[40]]), case("PyTorch", "f32", [[90]]),
                 case("mlx-lm", "f32", [[1]])]
        rows = table.headline(results(cases))
        self.assertEqual([r[2] for r in rows], ["PyTorch, bf16, avx2", "PyTorch, f32, avx2"])
        self.assertEqual([r[4] for r in rows], ["4.00× (4.00–4.00)", "1.80× (1.80–1.80)"])

    def test_headline_has_no_row_twice(self):
        cases = [case("wick", "f32", [[10]]), case("PyTorch", "f32", [[40]])]
        self.assertEqual(len(table.headline(results(cases))), 1)

    def test_generations_behind_one_name_are_told_apart(self):
        names = [machine.full_name({"cpu": "AMD EPYC", "family": f})
                 for f in ("25/1", "25/17", "26/2", "26/17", "26/250", "")]
        self.assertEqual(names, ["AMD EPYC (Zen 3)", "AMD EPYC (Zen 4)", "AMD EPYC (Zen 5)",
                                 "AMD EPYC (Zen 5)", "AMD EPYC", "AMD EPYC"])
        r = results([case("wick", "bf16", [[10.0]]), case("PyTorch", "bf16", [[25.0]])])
        self.assertIn("| CPU | AVX2 (Zen 5), 2 threads |", table.speeds([r]))
        self.assertIn("## C (Zen 5), avx2", table.page([r]))

    def test_cpus_go_by_instruction_set_and_cards_come_last(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, isa in (("a", "avx2"), ("b", "amx"), ("c", "unheard-of")):
                each = results([])
                each["machine"]["isa"] = isa
                (Path(folder) / f"{name}.json").write_text(json.dumps(each))
            card = Path(folder) / "card"
            card.mkdir()
            (card / "0.json").write_text(json.dumps({"format": table.table_cuda.FORMAT}))
            found = table.read_results(Path(folder))
        self.assertEqual([r.get("machine", {}).get("isa") for r in found],
                         ["amx", "avx2", "unheard-of", None])

    def test_decoding_is_compared_at_the_same_bits(self):
        cases = [case("wick", "8", [[10]], "decode"), case("llama.cpp", "4", [[20]], "decode")]
        self.assertEqual(table.headline(results(cases)), [])

    def test_what_was_left_out_is_said(self):
        text = table.page([results([case("PyTorch", "bf16", [], skipped="died of SIGILL")])])
        self.assertIn("Left out: PyTorch, bf16 (died of SIGILL).", text)
        self.assertIn("Nothing was measured.", text)

    def test_lines_of_wick_bench_make_tables(self):
        r = results([])
        line = {"bench": "ops", "what": "softmax 1024", "dtype": "f32", "ms": 0.5, "ms_p10": 0.4,
                "ms_p90": 0.6, "gflop": 0.01, "kernels": 3}
        r["bench"] = {"auto": {"lines": [line]}}
        text = table.page([r])
        self.assertIn("| what | type | ms (p10–p90) | GFLOP/s | kernels |", text)
        self.assertIn("| softmax 1024 | f32 | 0.500 (0.400–0.600) | 20.0 | 3 |", text)

    def test_commits_of_single_lines_are_named_once_and_are_no_column(self):
        r = results([])
        lines = [{"bench": "ops", "what": "a", "dtype": "f32", "ms": 1.0},
                 {"bench": "lora", "what": "b", "dtype": "f32", "ms": 1.0, "commit": "new"}]
        r["bench"] = {"auto": {"lines": lines, "commit": "old"}}
        text = table.page([r])
        self.assertIn("commit new, old", text)
        self.assertNotIn("| commit |", text)

    def test_the_peer_stands_beside_the_same_operation_and_type(self):
        r = results([])
        line = {"bench": "ops", "what": "matmul", "dtype": "f32", "ms": 2.0}
        peer = [{"bench": "ops", "what": "matmul", "dtype": "f32", "ms": 3.0},
                {"bench": "ops", "what": "matmul", "dtype": "bf16", "ms": 1.0},
                {"bench": "ops", "what": "softmax", "dtype": "f32", "ms": 5.0}]
        r["bench"] = {"f32": {"lines": [line], "peer": peer}}
        text = table.page([r])
        self.assertIn("| matmul | f32 | 2.00 | 3.00 | 1.50 |", text)
        self.assertIn("| softmax | f32 |  | 5.00 |  |", text)
        self.assertNotIn("bf16 |", text.split("wick's own tables")[1])

    def test_larger_shapes_have_a_table_of_their_own(self):
        r = results([])
        r["bench"] = {"qwen2.5-3b": {"lines": [{"bench": "train", "what": "step", "ms": 9.0}]}}
        text = table.page([r])
        self.assertIn("#### Larger shapes", text)
        self.assertIn("qwen2.5-3b: train, step", text)

    def test_the_readme_keeps_what_is_around_its_table(self):
        r = results([case("wick", "bf16", [[10.0]]), case("PyTorch", "bf16", [[25.0]])])
        text = table.speeds([r])
        self.assertIn("2.50×", text)
        readme = "# a\n" + table.FIRST + "old\n" + table.LAST + "rest\n"
        self.assertEqual(table.with_speeds(readme, text),
                         "# a\n" + table.FIRST + text + table.LAST + "rest\n")

    def test_the_readme_has_processors_side_by_side(self):
        first = results([case("wick", "f32", [[10.0]]), case("PyTorch", "f32", [[25.0]])])
        second = results([case("wick", "8", [[10.0]], "decode"),
                          case("llama.cpp", "8", [[30.0]], "decode")])
        second["machine"] = {**second["machine"], "isa": "amx", "family": ""}
        lines = table.speeds([first, second]).splitlines()
        self.assertEqual(lines[0], "| CPU | AVX2 (Zen 5), 2 threads | AMX, 2 threads |")
        self.assertTrue(lines[2].endswith(
            "| 10.0 ms (f32)<br>**2.50×** (2.50–2.50)<br>PyTorch, f32, avx2 |  |"))
        self.assertTrue(lines[3].endswith(
            "|  | 10.0 ms (8-bit)<br>**3.00×** (3.00–3.00)<br>llama.cpp, 8-bit, avx2 |"))

    def test_no_results_no_tables(self):
        self.assertIn("No results are kept yet.", table.page([]))


if __name__ == "__main__":
    unittest.main()
