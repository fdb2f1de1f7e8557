#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/compare/run.py: what happens to a case that crashes, hangs or computes something else."""

import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "compare"))

import cases
import run

WANTED = {"losses": [2.0, 1.0], "prefill": [5, 6, 7], "decode": [5]}


def setting(**more):
    values = {"folder": Path("."), "work": Path("."), "wick": Path("wick"), "threads": 2,
              "quick": True, "shim": "", "flags": ["avx2"], **more}
    return cases.Setting(**values)


def case(program, group="train", bits="f32", rungs=None, limit=30, **more):
    return cases.Case("x", group, "peer", "peer", bits, "", lambda s, first: [
        sys.executable, "-S", "-c", program], cases.last_object,
        rungs or [cases.Rung("best")], limit, **more)


def measured(case_, index=0):
    record = {"rung": 0, "notes": [], "rounds": []}
    run.measure(case_, setting(), record, index, WANTED)
    return record


def program(**result):
    return f"print('noise'); print('''{json.dumps(result)}''')"


class RunTest(unittest.TestCase):
    def setUp(self):
        run.say = lambda text: None

    def test_a_right_result_counts(self):
        record = measured(case(program(ms=[3.0], losses=[2.0001, 1.0])))
        self.assertEqual(record["rounds"][0]["ms"], [3.0])
        self.assertEqual(record["isa"], "best")
        self.assertAlmostEqual(record["loss_difference"], 5e-5)
        self.assertGreater(record["rounds"][0]["peak_bytes"], 1 << 20)

    def test_mkl_is_told_to_take_its_best_where_it_holds_back(self):
        told = {c.id: c for c in cases.all_cases(setting(shim="a.so", mkl_shim="b.so"))}
        for name in ("train/torch-f32-keep", "prefill/torch-f32-mkl"):
            self.assertIn("MKL", told[name].configuration)
            self.assertEqual(told[name].rungs[0].environment["LD_PRELOAD"], "a.so:b.so")
        self.assertEqual(told["train/torch-f32"].rungs[0].environment["LD_PRELOAD"], "a.so")
        plain = {c.id: c for c in cases.all_cases(setting())}
        self.assertNotIn("prefill/torch-f32-mkl", plain)
        self.assertNotIn("LD_PRELOAD", plain["train/torch-f32-keep"].rungs[0].environment)

    def test_losses_that_differ_do_not(self):
        record = measured(case(program(ms=[3.0], losses=[2.001, 1.0])))
        self.assertEqual(record["rounds"], [])
        self.assertIn("wrong result: losses differ", record["skipped"])

    def test_no_losses_are_no_result(self):
        self.assertIn("wrong result", measured(case(program(ms=[3.0], losses=[])))["skipped"])

    def test_tables_measured_again_take_the_place_of_their_own(self):
        before = {"commit": "old", "skipped": "stopped", "peer": [1], "lines": [
            {"bench": "lora", "ms": 1.0}, {"bench": "batch", "ms": 2.0}]}
        fresh = {"commit": "new", "peer": [], "lines": [{"bench": "lora", "ms": 3.0},
                                                        {"bench": "merge", "ms": 4.0}]}
        self.assertEqual(run.with_tables(before, fresh), {"commit": "old", "peer": [1], "lines": [
            {"bench": "batch", "ms": 2.0}, {"bench": "lora", "ms": 3.0, "commit": "new"},
            {"bench": "merge", "ms": 4.0, "commit": "new"}]})
        failed = run.with_tables(before, {**fresh, "skipped": "died"})
        self.assertEqual(failed["skipped"], "died")

    def test_a_token_may_lie_deeper_with_fewer_bits(self):
        right = program(ms=[1.0], first_token=7)
        self.assertIn("skipped", measured(case(right, "prefill", "f32")))
        self.assertEqual(measured(case(right, "prefill", "bf16"))["first_token_place"], 2)

    def test_a_crash_moves_one_rung_down_and_is_noted(self):
        crash = ("import os, signal\n"
                 "if 'LOW' not in os.environ: os.kill(os.getpid(), signal.SIGILL)\n")
        rungs = [cases.Rung("AMX"), cases.Rung("AVX2", {"LOW": "1"})]
        record = measured(case(crash + program(ms=[1.0], losses=[2.0]), rungs=rungs))
        self.assertEqual(record["notes"], ["AMX: died of SIGILL; retried on AVX2"])
        self.assertEqual((record["isa"], record["rung"]), ("AVX2", 1))

    def test_a_crash_on_the_last_rung_is_left_out(self):
        record = measured(case("import os; os.abort()"))
        self.assertEqual(record["skipped"], "died of SIGABRT")

    def test_an_error_is_left_out_with_its_last_line(self):
        record = measured(case("raise SystemExit('no such flag')"))
        self.assertEqual(record["skipped"], "no such flag")

    def test_large_shapes_are_trained_where_that_takes_a_minute(self):
        self.assertFalse(run.trains(setting(wick_isa="avx2", peak_gflops=100), "qwen2.5-7b"))
        self.assertTrue(run.trains(setting(wick_isa="avx2", peak_gflops=1000), "qwen2.5-7b"))
        self.assertTrue(run.trains(setting(wick_isa="amx", peak_gflops=300), "qwen2.5-7b"))

    def test_pytorch_is_not_asked_for_bf16_that_it_only_imitates(self):
        def ids(*flags):
            return {c.id for c in cases.all_cases(setting(flags=list(flags)))}
        self.assertIn("train/torch-f32", ids("avx2"))
        self.assertNotIn("train/torch-bf16", ids("avx2"))
        self.assertIn("train/torch-bf16", ids("avx2", "avx512f", "avx512_bf16"))

    def test_a_process_that_hangs_is_stopped(self):
        record = measured(case("import time; time.sleep(600)", limit=0.5))
        self.assertIn("stopped after", record["skipped"])

    def test_output_that_is_not_json_is_left_out(self):
        self.assertIn("cannot be read", measured(case("print('hello')"))["skipped"])

    def test_times_of_a_training_run_are_between_its_steps(self):
        lines = [{"event": "forecast", "peak_bytes": 7, "step_ms": 1.0, "gflop": 2.0},
                 *({"event": "step", "seconds": s, "loss": 9 - s} for s in (1.0, 1.5, 2.5))]
        read = cases.read_wick_train("\n".join(json.dumps(x) for x in lines), None)
        self.assertEqual(read["ms"], [500.0, 1000.0])
        self.assertEqual(read["losses"], [8.0, 7.5, 6.5])

    def test_instruction_sets_from_the_best_down(self):
        s = setting(flags=["avx2", "avx512f", "avx512_bf16", "amx_bf16"], shim="/shim.so")
        names = [r.isa for r in cases.torch_rungs(s, "bf16")]
        self.assertEqual(names, ["AMX", "AVX-512 BF16", "AVX-512", "AVX2"])
        best = cases.torch_rungs(s, "bf16")[0].environment
        self.assertEqual(best["LD_PRELOAD"], "/shim.so")
        self.assertNotIn("ONEDNN_MAX_CPU_ISA", best)

    def test_every_case_has_a_name_of_its_own(self):
        names = [c.id for c in cases.all_cases(setting(flags=["avx2", "avx512f", "amx_int8"]))]
        self.assertEqual(len(names), len(set(names)))

    def test_work_is_what_the_plan_of_wick_counts(self):
        self.assertAlmostEqual(cases.work()["train"]["gflop"], 1051.7, delta=1.0)


if __name__ == "__main__":
    unittest.main()
