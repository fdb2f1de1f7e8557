# SPDX-License-Identifier: Apache-2.0
"""The groups of the comparison on a GPU and the engines in each, most telling first."""

import json
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ATTENTION = ("q_proj", "v_proj")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BENCH_LEARNING_RATE = 1e-4  # of wick bench
PROMPT, ROOM = 128, 384  # tokens before decoding, and what the cache holds

TORCH = {"eager": "eager, SDPA", "compile": "torch.compile",
         "graphs": "torch.compile, reduce-overhead (CUDA graphs)",
         "onegraph": "torch.compile, whole step captured as one CUDA graph",
         "static": "static cache, torch.compile, reduce-overhead (CUDA graphs)"}


@dataclass
class Case:
    """One engine in one configuration. Peers have a mode; wick has the words of its command."""
    id: str
    engine: str
    package: str
    bits: str  # bf16, 8, 4: what is compared with what
    configuration: str
    mode: str = ""
    adapter_dtype: str = "f32"
    batch: int = 1
    quick: bool = True
    warm_limit: int = 300  # seconds until a peer is ready
    limit: int = 90  # seconds of a turn


@dataclass
class Group:
    name: str
    kind: str  # train, decode
    title: str
    cases: list
    shape: str = "qwen2.5-0.5b"
    batch: int = 1
    seq: int = 512
    rank: int = 8
    targets: tuple = ATTENTION
    quick: bool = True
    learning_rate: float = 1e-3  # of the ten steps that are compared

    def steps(self):
        return 50 if self.batch * self.seq <= 2048 and self.shape.endswith("0.5b") else 25


def wick(bits="bf16", **more):
    names = {"8": "8-bit weights", "4": "4-bit weights", "bf16": "bf16, f32 adapter and moments"}
    return Case(more.pop("id", f"wick-{bits}"), "wick", "wick", bits,
                more.pop("configuration", names[bits]), **more)


def torch(mode, engine="PyTorch + PEFT", **more):
    kind = more.get("adapter_dtype", "f32")
    text = TORCH[mode] + (f", adapter {kind}" if "PEFT" in engine else "")
    return Case(f"torch-{mode}{'' if kind == 'f32' else '-' + kind}", engine, "torch", "bf16",
                text, mode, **more)


def mlx(text="mlx-lm's compiled step"):
    return Case("mlx", "MLX", "mlx", "bf16", text, "mlx")


def train(name, title, *peers, **more):
    return Group(name, "train", title, [wick(), *peers], **more)


def all_groups():
    usual = lambda: (torch("graphs"), torch("compile"), torch("eager"), mlx())
    rank8 = "LoRA rank 8 on q and v"
    # At 1e-3 their losses jump, in f32 too, and rounding decides how far: nothing to compare.
    large = {"batch": 1, "seq": 2048, "rank": 16, "targets": ALL, "quick": False,
             "learning_rate": 1e-4}
    return [
        train("train-1x512", f"Training step, 1 × 512 tokens, {rank8}", *usual(),
              torch("onegraph", quick=False), torch("graphs", adapter_dtype="bf16", quick=False)),
        train("train-16x512", f"Training step, 16 × 512 tokens, {rank8}", *usual(), batch=16),
        Group("decode", "decode", "Decoding, batch 1, prompt 128, greedy", [
            wick(configuration="bf16 weights and activations"),
            torch("static", "PyTorch"), torch("eager", "PyTorch"), mlx("mlx-lm"), wick("8"),
            wick("4")]),
        train("train-all-1x512", "Training step, 1 × 512 tokens, LoRA rank 8 on all 7 linears",
              *usual(), targets=ALL),
        train("train-4x512", f"Training step, 4 × 512 tokens, {rank8}", *usual(), batch=4),
        train("train-4x2048", f"Training step, 4 × 2048 tokens, {rank8}", *usual(), batch=4,
              seq=2048),
        train("train-all-16x512", "Training step, 16 × 512 tokens, LoRA rank 8 on all 7 linears",
              torch("compile"), torch("graphs", quick=False), torch("eager"), mlx(), batch=16,
              targets=ALL),
        Group("decode-batch", "decode", "Decoding by batch size, prompt 128, greedy, bf16", [
            wick(id=f"wick-{n}", configuration=f"batch {n}", batch=n) for n in (1, 4, 8, 16, 64)]),
        train("train-7b", "Training step, Qwen2.5-7B's shape, LoRA rank 16 on all 7 linears, "
              "1 × 2048 tokens", torch("compile"), torch("eager"), shape="qwen2.5-7b", **large),
        train("train-3b", "Training step, Qwen2.5-3B's shape, LoRA rank 16 on all 7 linears, "
              "1 × 2048 tokens", torch("compile"), torch("eager"), shape="qwen2.5-3b", **large),
    ]


# wick's commands and what they print


def wick_type(bits):
    return ["--quantize", bits] if bits in ("8", "4") else ["--dtype", bits]


def wick_turn(s, group, case, paths):
    """The command that is timed in every round."""
    words = [s.wick, "bench", "--model", paths["model"], *wick_type(case.bits), "--device",
             s.device, "--json"]
    if group.kind == "train":
        return [*words, "train", "--batch-size", group.batch, "--seq", group.seq, "--rank",
                group.rank, "--targets", ",".join(group.targets), "--iters", s.steps(group),
                "--warmup", 100 if group.steps() == 50 else 10, "--losses"]
    first = ["generate", "--max-tokens", 16] if case.batch == 1 else []
    return [*words, "decode", *first, "--prompt-tokens", s.prompt, "--batch-size", case.batch,
            "--seconds", 1]


def wick_check(s, group, case, paths, work):
    """The command whose result is checked: ten steps of training, or a greedy token."""
    if group.kind == "train":
        return [s.wick, "train", "--model", paths["model"], "--data", paths["data"],
                "--init-adapter", paths["adapter"], "--adapter-path", work / "adapter",
                "--dtype", "bf16", "--rank", group.rank, "--alpha", 2 * group.rank, "--targets",
                ",".join(group.targets), "--batch-size", group.batch, "--iters", 10,
                "--no-shuffle", "--learning-rate", group.learning_rate, "--lr-schedule", "constant",
                "--warmup", 0, "--weight-decay", 0.01, "--grad-clip", 1, "--steps-per-report", 1,
                "--steps-per-eval", 0, "--save-every", 1000, "--max-seq-length", group.seq + 1,
                "--device", s.device, "--json"]
    prompt = json.loads((paths["data"] / "ids.json").read_text())["prompt"]["text"]
    return [s.wick, "generate", "--model", paths["model"], *wick_type(case.bits), "--prompt",
            prompt, "--ignore-chat-template", "--max-tokens", 16, "--temp", 0, "--device",
            s.device, "--json"]


def objects(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def read_wick_check(group, output):
    lines = objects(output)
    if group.kind == "train":
        return {"losses": [x["loss"] for x in lines if x.get("event") == "step"]}
    tokens = next(x["tokens"] for x in lines if "tokens" in x)
    return {"first_token": tokens[0], "tokens": tokens}


def read_wick_turn(group, output):
    """Quantiles stand for the single times, which a line of wick bench does not have."""
    lines = objects(output)
    main = next(x for x in lines if x.get("bench") == group.kind)
    found = {"ms": [main["ms_p10"], main["ms"], main["ms_p90"]], "runs": main["runs"],
             "isa": main.get("isa", ""), "line": {**main, "shape": group.shape}}  # not its folder
    if group.kind == "train":
        found.update(peak_bytes=main.get("bytes"), bench_losses=main.get("losses", []),
                     weights=main.get("weight_dtype"), adapter=main.get("adapter_dtype"),
                     moments=main.get("moments_dtype"), gflop=main.get("gflop"))
    first = [x for x in lines if x.get("what") == "first token, greedy"]
    if first:
        found["first_ms"] = [first[0]["ms_p10"], first[0]["ms"], first[0]["ms_p90"]]
    return found
