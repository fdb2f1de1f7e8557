# SPDX-License-Identifier: Apache-2.0
"""The cases of the comparison: which engine does what, in which type, by which command.

Every case gives, per process, the milliseconds of each repetition and what is needed to check the
result. Cases of one group are run in turn, round by round.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent

LAYERS, HIDDEN, KV, FFN, VOCAB = 24, 896, 128, 4864, 151936
LINEARS = LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * FFN)
HEAD = HIDDEN * VOCAB
LEARNING_RATE = 1e-3
ROWS = 10  # losses that are compared

# Larger shapes, of which wick's own tables and PyTorch have a few rows: layers, hidden, query and
# KV heads, ffn, vocabulary, whether the head is the embedding.
SHAPES = {"qwen2.5-3b": (36, 2048, 16, 2, 11008, 151936, True),
          "qwen2.5-7b": (28, 3584, 28, 4, 18944, 152064, False)}


def weight_bytes(shape):
    """In bf16."""
    layers, hidden, heads, kv_heads, ffn, vocab, tied = SHAPES[shape]
    kv = hidden // heads * kv_heads
    linears = layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn)
    return 2 * (linears + (1 if tied else 2) * hidden * vocab)


def shape_gflop(shape, tokens):
    """Of a prompt of so many tokens; a training step is three times that at most."""
    return weight_bytes(shape) * tokens / 1e9


# Bytes of a weight as it rests, scales included.
BYTES = {"f32": 4, "bf16": 2, "8": 34 / 32, "4": 18 / 32}


def attention_flop(tokens):
    return LAYERS * 2 * tokens * tokens * HIDDEN  # causal: half of both products


def work():
    """GFLOP of a training step and of a prefill; weights read by a decoded token."""
    forward = 2 * 512 * (LINEARS + HEAD) + attention_flop(512)
    backward = 2 * 512 * (LINEARS + HEAD) + 2.5 * attention_flop(512)
    return {"train": {"gflop": (forward + backward) / 1e9, "tokens": 512},
            "prefill": {"gflop": (2 * 512 * LINEARS + 2 * HEAD + attention_flop(512)) / 1e9,
                        "tokens": 512},
            "decode": {"gflop": 2 * (LINEARS + HEAD) / 1e9, "tokens": 1,
                       "weights": LINEARS + HEAD}}


@dataclass
class Rung:
    """One way to start a peer; the next is tried where it crashes."""
    isa: str
    environment: dict = field(default_factory=dict)
    arguments: list = field(default_factory=list)


@dataclass
class Case:
    id: str
    group: str  # train, prefill, decode
    engine: str
    package: str  # whose version is named
    bits: str  # f32, bf16, 8, 4: what is compared with what
    configuration: str
    command: object  # (Setting, first round?) -> list
    read: object  # (output, Setting) -> dict with ms and losses or first_token
    rungs: list = field(default_factory=lambda: [Rung("")])
    limit: int = 150
    rounds: int = 0  # 0: as many as asked for
    quick: bool = True  # also in a quick run
    check: object = None  # (Setting) -> command whose output `read_check` understands
    read_check: object = None


@dataclass
class Setting:
    folder: Path
    work: Path  # for files that a case writes
    wick: Path
    threads: int
    quick: bool
    shim: str
    flags: list
    wick_isa: str = ""
    peak_gflops: float = 0
    mkl_shim: str = ""  # where MKL holds back

    def ids(self):
        return json.loads((self.folder / "ids.json").read_text())


def last_object(output, _setting):
    return json.loads(output.strip().splitlines()[-1])


# wick


def on_cpu(s):
    """By name, since wick takes a GPU where the machine has one."""
    return ["--device", "cpu", "--threads", str(s.threads)]


def wick_train(dtype):
    def command(s, first):
        steps = ROWS if first else (3 if s.quick else 6)
        return [s.wick, "train", "--model", s.folder / "model", "--data", s.folder / "data",
                "--init-adapter", s.folder / "adapter", "--adapter-path", s.work / f"wick-{dtype}",
                "--dtype", dtype, "--rank", "8", "--alpha", "16", "--targets", "q_proj,v_proj",
                "--batch-size", "1", "--iters", str(steps + 1), "--no-shuffle",
                "--learning-rate", str(LEARNING_RATE), "--lr-schedule", "constant",
                "--warmup", "0", "--weight-decay", "0.01", "--grad-clip", "1",
                "--steps-per-report", "1", "--steps-per-eval", "0", "--save-every", "1000",
                *on_cpu(s), "--json"]
    return command


def read_wick_train(output, _setting):
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    steps = [e for e in events if e.get("event") == "step"]
    times = [e["seconds"] for e in steps]
    forecast = next((e for e in events if e.get("event") == "forecast"), {})
    return {"ms": [1e3 * (b - a) for a, b in zip(times, times[1:])],
            "losses": [e["loss"] for e in steps],
            "forecast": {k: forecast.get(k) for k in ("peak_bytes", "step_ms", "gflop")}}


def wick_type(bits):
    return ["--quantize", bits, "--dtype", "auto"] if bits in ("8", "4") else ["--dtype", bits]


def wick_bench(table, bits):
    def command(s, _first):
        size = ["--seq", "512"] if table == "prefill" else ["--prompt-tokens", "128"]
        seconds = "1" if s.quick else "3"
        return [s.wick, "bench", table, "--model", s.folder / "model", *wick_type(bits), *size,
                "--batch-size", "1", "--seconds", seconds, *on_cpu(s), "--json"]
    return command


def read_wick_bench(output, _setting):
    line = next(json.loads(x) for x in output.splitlines()
                if x.startswith("{") and json.loads(x).get("bench") in ("prefill", "decode"))
    # Quantiles stand for the single times, which the line does not have.
    return {"ms": [line["ms_p10"], line["ms"], line["ms_p90"]], "line": line}


def wick_first_token(prompt, bits):
    def command(s):
        return [s.wick, "generate", "--model", s.folder / "model", *wick_type(bits),
                "--prompt", s.ids()[prompt]["text"], "--ignore-chat-template",
                "--max-tokens", "1", "--temp", "0", *on_cpu(s), "--json"]
    return command


def read_wick_first_token(output):
    line = next(json.loads(x) for x in output.splitlines() if x.startswith("{"))
    return {"first_token": line["tokens"][0], "prompt_tokens": line["prompt_tokens"]}


# PyTorch

MKL_TOLD = ", MKL told to take its best code"


def torch_rungs(s, bits, keep=False, mkl=False):
    """From the best instruction set that the machine has down. `keep`: freed memory stays with the
    process, so that no page is faulted in twice. `mkl`: with the preload library for MKL."""
    base = {"OMP_NUM_THREADS": str(s.threads), "MKL_NUM_THREADS": str(s.threads)}
    if keep:
        base.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="17179869184",
                    MALLOC_TOP_PAD_="67108864")
    preloaded = [library for library in (s.shim, s.mkl_shim if mkl else "") if library]
    if preloaded:
        base["LD_PRELOAD"] = ":".join(preloaded)
    names = []
    if "amx_bf16" in s.flags and bits == "bf16":
        names.append(("AMX", "AVX512_CORE_AMX"))
    if "avx512_bf16" in s.flags and bits == "bf16":
        names.append(("AVX-512 BF16", "AVX512_CORE_BF16"))
    if "avx512f" in s.flags:
        names.append(("AVX-512", "AVX512_CORE"))
    if "avx2" in s.flags:
        names.append(("AVX2", "AVX2"))
    rungs = []
    for index, (name, onednn) in enumerate(names):
        # The best one is the library's own choice.
        rungs.append(Rung(name, base if index == 0 else {**base, "ONEDNN_MAX_CPU_ISA": onednn}))
    return rungs or [Rung("", base)]


def slow_in_torch(s, bits):
    """bf16 where the processor has no products of it: PyTorch then takes ten times as long as in
    f32 (a prompt of 512 tokens 40 s on AVX2), so that it is no rival and costs minutes."""
    return bits == "bf16" and not {"avx512_bf16", "amx_bf16"} & set(s.flags)


def torch_command(kind, bits, extra=()):
    counts = {"train": (1, 2, 3), "prefill": (1, 2, 4), "decode": (2, 16, 32)}[kind]

    def command(s, first):
        warm, count = counts[0], counts[1 if s.quick else 2]
        if kind == "train" and first and bits != "f32":
            count = ROWS - warm
        return [sys.executable, HERE / "peer_torch.py", kind, s.folder, "--dtype", bits,
                "--threads", str(s.threads), "--warmup", str(warm), "--count", str(count), *extra]
    return command


# llama.cpp


def llama_command(kind, quant):
    def command(s, _first):
        count = {"prefill": (2, 4), "decode": (32, 64)}[kind][0 if s.quick else 1]
        return [sys.executable, HERE / "peer_llama.py", kind, s.folder, "--kind", quant,
                "--threads", str(s.threads), "--warmup", "2", "--count", str(count)]
    return command


def llama_rungs(s, bits):
    native = "AVX-512" if "avx512f" in s.flags else "AVX2" if "avx2" in s.flags else ""
    if bits == "bf16" and "avx512_bf16" in s.flags:
        native = "AVX-512 BF16"
    if bits in ("8", "4"):
        amx = "amx_int8" in s.flags
        return [Rung("AMX int8" if amx else native + ", repacked"),
                Rung(native, arguments=["--plain"])]
    return [Rung(native)]


# MLX


def mlx_command(kind, bits, count):
    return lambda s, _first: [sys.executable, HERE / "peer_mlx.py", kind, s.folder,
                              "--dtype", bits, "--count", str(count)]


def all_cases(s):
    cases = []

    def wick_case(group, bits, **more):
        names = {"8": "8-bit weights", "4": "4-bit weights", "bf16": "bf16 weights and activations",
                 "f32": "f32 activations, bf16 weights at rest"}
        cases.append(Case(f"{group}/wick-{bits}", group, "wick", "wick", bits, names[bits],
                          rungs=[Rung(s.wick_isa)], **more))

    def peer_case(group, engine, package, bits, configuration, command, rungs, suffix="", **more):
        key = {"llama.cpp": "llama", "PyTorch + PEFT": "torch", "PyTorch": "torch"}.get(engine,
                                                                                          "mlx")
        cases.append(Case(f"{group}/{key}-{bits}{suffix}", group, engine, package, bits,
                          configuration, command, last_object, rungs, **more))

    for bits in ("bf16", "f32"):
        wick_case("train", bits, command=wick_train(bits), read=read_wick_train)
        if slow_in_torch(s, bits):
            continue
        peer_case("train", "PyTorch + PEFT", "torch", bits, "eager, SDPA, adapter f32",
                  torch_command("train", bits), torch_rungs(s, bits))
        mkl = bits == "f32" and s.mkl_shim != ""
        peer_case("train", "PyTorch + PEFT", "torch", bits,
                  "the same, allocator told to keep memory" + mkl * MKL_TOLD,
                  torch_command("train", bits), torch_rungs(s, bits, True, mkl), suffix="-keep")
    peer_case("train", "mlx-lm", "mlx", "f32", "compiled step, CPU, one step",
              mlx_command("train", "f32", 1), [Rung("")], limit=900, rounds=1, quick=False)

    for bits, quant in (("f32", "f32"), ("bf16", "bf16"), ("8", "q8_0"), ("4", "q4_0")):
        wick_case("prefill", bits, command=wick_bench("prefill", bits), read=read_wick_bench,
                  check=wick_first_token("prompt512", bits), read_check=read_wick_first_token)
        peer_case("prefill", "llama.cpp", "llama-cpp-python", bits, quant.upper(),
                  llama_command("prefill", quant), llama_rungs(s, bits))
        if bits in ("f32", "bf16"):
            peer_case("prefill", "PyTorch", "torch", bits,
                      "eager, SDPA, allocator told to keep memory",
                      torch_command("prefill", bits), torch_rungs(s, bits, True),
                      **({"rounds": 1, "quick": False} if slow_in_torch(s, bits) else {}))
        if bits == "f32" and s.mkl_shim:
            peer_case("prefill", "PyTorch", "torch", bits, "the same" + MKL_TOLD,
                      torch_command("prefill", bits), torch_rungs(s, bits, True, True),
                      suffix="-mkl")
    peer_case("prefill", "mlx-lm", "mlx", "f32", "CPU, f32", mlx_command("prefill", "f32", 1),
              [Rung("")], limit=300, rounds=1, quick=False)

    for bits, quant in (("bf16", "bf16"), ("8", "q8_0"), ("4", "q4_0")):
        wick_case("decode", bits, command=wick_bench("decode", bits), read=read_wick_bench,
                  check=wick_first_token("prompt128", bits), read_check=read_wick_first_token)
        head = ", 4-bit head" if bits == "4" else ""
        peer_case("decode", "llama.cpp", "llama-cpp-python", bits, quant.upper() + head,
                  llama_command("decode", quant), llama_rungs(s, bits))
    peer_case("decode", "PyTorch", "torch", "bf16", "eager, SDPA, allocator told to keep memory",
              torch_command("decode", "bf16"), torch_rungs(s, "bf16", True))
    peer_case("decode", "mlx-lm", "mlx", "bf16", "CPU, bf16", mlx_command("decode", "bf16", 4),
              [Rung("")], limit=300, rounds=1, quick=False)
    return cases
