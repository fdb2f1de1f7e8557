#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch, transformers and PEFT in the comparison on a GPU; see cuda_peer.py for how it is driven.

Modes of training: eager; compile (torch.compile); graphs (torch.compile, mode reduce-overhead: CUDA
graphs of forward and backward); onegraph (the compiled step with clipping and optimizer captured
into one graph); reference (f32, row by row). Of decoding: eager (cache that grows), static (static
cache, compiled, CUDA graphs), reference. `ops` gives single operations in device time.
"""

import json
import os
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the imports below

import torch
import transformers
from torch.nn import functional

import cuda_model
import cuda_peer

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
BATCHES = 32  # of random ids, in turn


def load(job):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=DTYPES[job["dtype"]], attn_implementation="sdpa")
    return model.to(job["device"])


def settle(job):
    if job["device"] == "cuda":
        torch.cuda.synchronize()


def facts(job, **more):
    found = {"weights": job["dtype"], **more}
    if job["device"] == "cuda":
        found.update(peak_bytes=torch.cuda.max_memory_allocated(),
                     reserved_bytes=torch.cuda.max_memory_reserved(),
                     matmul=torch.get_float32_matmul_precision())
    if job["mode"] not in ("eager", "reference"):
        from torch._dynamo.utils import counters
        found["graph_breaks"] = sum(counters["graph_break"].values())
        found["cudagraph_skips"] = counters["inductor"]["cudagraph_skips"]
    return found


def memory(job):
    if job["device"] != "cuda":
        return {}
    found = {"peak_bytes": torch.cuda.max_memory_allocated(),
             "reserved_bytes": torch.cuda.max_memory_reserved()}
    torch.cuda.empty_cache()  # others have their turns now
    return found


def on_host(job, rows):
    rows = torch.as_tensor(rows)
    return rows.pin_memory() if job["device"] == "cuda" else rows


class Train:
    def __init__(self, job):
        import peft
        self.job, mode = job, job["mode"]
        self.cuda = job["device"] == "cuda"
        torch.set_float32_matmul_precision("highest" if mode == "reference" else "high")
        base = load(job)
        # PEFT keeps adapters in f32 beside a bf16 model unless told otherwise.
        model = peft.PeftModel.from_pretrained(base, job["adapter"], is_trainable=True,
                                               autocast_adapter_dtype=job["adapter_dtype"] == "f32")
        model.train()
        # The wrapper's hooks would break the compiled graph; its layers are PEFT's all the same.
        self.model = model.get_base_model()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters or all(bool((p == 0).all()) for p in self.parameters):
            raise SystemExit("the adapter was not read")
        self.ids = torch.empty((job["batch"], job["seq"] + 1), dtype=torch.int64,
                               device=job["device"])
        vocab, width = base.config.vocab_size, job["seq"] + 1
        self.bench = [on_host(job, cuda_model.bench_ids(b, job["batch"], width, vocab))
                      for b in range(BATCHES)]
        self.next = 0
        self.graph, self.stream = None, None
        self.loss_of = {"compile": lambda: torch.compile(self.eager_loss, dynamic=False),
                        "onegraph": lambda: torch.compile(self.eager_loss, dynamic=False),
                        "graphs": lambda: torch.compile(self.eager_loss, dynamic=False,
                                                        mode="reduce-overhead")
                        }.get(mode, lambda: self.eager_loss)()
        start = [p.detach().clone() for p in self.parameters]
        losses = self.learn(job["learning_rate"])
        more = {}
        if mode == "reference":
            with torch.no_grad():
                for p, value in zip(self.parameters, start):
                    p.copy_(value)
            self.optimize(job["bench_learning_rate"])
            more["bench_losses"] = [self.one(x).item() for x in self.bench[:cuda_model.STEPS]]
        kinds = sorted({str(p.dtype).removeprefix("torch.") for p in self.parameters})
        moments = sorted({str(v.dtype).removeprefix("torch.")
                          for state in self.optimizer.state.values()
                          for k, v in state.items() if k.startswith("exp_")})
        self.facts = facts(job, losses=losses, adapter=",".join(kinds), moments=",".join(moments),
                           parameters=sum(p.numel() for p in self.parameters), **more)

    def optimize(self, rate):
        graphed = {"capturable": True} if self.cuda else {}
        self.optimizer = torch.optim.AdamW(self.parameters, lr=rate, weight_decay=0.01, fused=True,
                                           **graphed)

    def learn(self, rate):
        """The ten losses that are checked; compiles on the way."""
        self.optimize(rate)
        rows = json.loads((Path(self.job["data"]) / "ids.json").read_text())["rows"]
        size, losses = self.job["batch"], []
        for step in range(cuda_model.STEPS):
            losses.append(self.one(on_host(self.job, rows[step * size:(step + 1) * size])).item())
            if step == 3 and self.job["mode"] == "onegraph" and self.cuda:
                self.capture()
        return losses

    def eager_loss(self, ids):
        logits = self.model(input_ids=ids[:, :-1], use_cache=False).logits
        return functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    def update(self):
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()

    def forward_and_backward(self):
        if self.job["mode"] == "reference":  # as much memory as one row takes
            losses = []
            for row in self.ids:
                loss = self.loss_of(row[None]) / len(self.ids)
                loss.backward()
                losses.append(loss.detach())
            return sum(losses)
        loss = self.loss_of(self.ids)
        loss.backward()
        return loss.detach()

    def one(self, rows):
        """A whole step over rows of the host; the loss stays on the device."""
        if self.graph:
            with torch.cuda.stream(self.stream):
                self.ids.copy_(rows, non_blocking=True)
                self.graph.replay()
                loss = self.loss.clone()
            torch.cuda.current_stream().wait_stream(self.stream)
            return loss
        if self.job["mode"] == "onegraph" and self.cuda:
            settle(self.job)
            self.stream = self.stream or torch.cuda.Stream()
            with torch.cuda.stream(self.stream):
                loss = self.plain(rows)
            settle(self.job)
            return loss
        return self.plain(rows)

    def plain(self, rows):
        self.ids.copy_(rows, non_blocking=True)
        if self.job["mode"] == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        loss = self.forward_and_backward().clone()
        self.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def capture(self):
        """Forward, backward, clipping and optimizer as one graph; runs nothing."""
        settle(self.job)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.loss = self.forward_and_backward()
            self.update()
        self.graph = graph

    def step(self):
        rows = self.bench[self.next % len(self.bench)]
        self.next += 1
        return self.sent(self.one(rows))

    def sent(self, loss):
        """The loss on its way to the host, so that reading it waits for no later step."""
        if not self.cuda:
            return loss, None
        host = torch.empty((), dtype=loss.dtype, pin_memory=True)
        host.copy_(loss, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return host, arrived

    def read(self, losses):
        for _, arrived in losses:
            if arrived is not None:
                arrived.synchronize()
        return [loss.item() for loss, _ in losses]

    def block(self, words):
        # What a graph uses between its results is counted while it is recorded, never in a replay.
        if self.cuda and self.job["mode"] in ("eager", "compile"):
            torch.cuda.reset_peak_memory_stats()
        stream = self.stream or (torch.cuda.current_stream() if self.cuda else None)
        if stream is None:
            found = cuda_peer.train_block(words, self.step, self.read)
        else:
            with torch.cuda.stream(stream):
                found = cuda_peer.train_block(words, self.step, self.read)
        return {**found, **memory(self.job)}


class Decode:
    @torch.no_grad()
    def __init__(self, job):
        self.job = job
        self.model = load(job).eval()
        config = self.model.config
        self.static = job["mode"] == "static"
        self.cache = (transformers.StaticCache(config=config, max_cache_len=job["room"])
                      if self.static else None)
        mode = {"mode": "reduce-overhead", "fullgraph": True, "dynamic": False}
        self.prefill = self.forward
        self.going_on = torch.compile(self.forward, **mode) if self.static else self.forward
        # The first pass makes the static cache, which must not happen in a compiled one.
        checked = json.loads((Path(job["data"]) / "ids.json").read_text())["prompt"]["ids"]
        self.prompt = on_host(job, [checked])
        tokens = [self.first_token()]
        if self.static:
            self.prefill = torch.compile(self.forward, **mode)
            self.cache.reset()
            tokens = [self.first_token()]
        more = {}
        if job["mode"] == "reference":
            logits = self.model(input_ids=self.prompt.to(job["device"]), use_cache=False).logits
            more["top"] = logits[0, -1].topk(min(1000, logits.shape[-1])).indices.tolist()
        for _ in range(15):
            tokens.append(self.following())
        self.prompt = on_host(job, cuda_model.bench_prompt(job["prompt"], config.vocab_size))
        self.facts = facts(job, first_token=tokens[0], tokens=tokens, **more)

    def forward(self, ids):
        logits = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True,
                            logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def first_token(self):
        if self.static:
            torch.compiler.cudagraph_mark_step_begin()
        else:
            self.cache = transformers.DynamicCache(config=self.model.config)
        self.token = self.prefill(self.prompt.to(self.job["device"], non_blocking=True)).clone()
        return int(self.token)

    def following(self):
        if self.static:
            torch.compiler.cudagraph_mark_step_begin()
        self.token = self.going_on(self.token).clone()
        return int(self.token)

    def timed_first(self):
        if self.static:
            self.cache.reset()
        settle(self.job)
        since = time.perf_counter()
        self.first_token()
        return 1e3 * (time.perf_counter() - since)

    @torch.no_grad()
    def block(self, words):
        return {**cuda_peer.decode_block(words, self.timed_first, self.following),
                **memory(self.job)}


class Ops:
    """Single operations by the names of wick bench, each repeated inside one CUDA graph."""

    @torch.no_grad()
    def __init__(self, job):
        self.job, self.facts = job, {"weights": job["dtype"]}

    def draw(self, *shape):
        return torch.randn(shape, device=self.job["device"]).to(DTYPES[self.job["dtype"]])

    def measure(self, run, repeats=50):
        run()
        settle(self.job)
        if self.job["device"] != "cuda":
            since = time.perf_counter()
            run()
            return [1e3 * (time.perf_counter() - since)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                run()
        ms = []
        for _ in range(12):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            ms.append(start.elapsed_time(end) / repeats)
        return sorted(ms[2:])

    @torch.no_grad()
    def block(self, _words):
        lines, draw = [], self.draw

        def line(bench, what, run):
            ms = self.measure(run)
            lines.append({"bench": bench, "what": what, "dtype": self.job["dtype"],
                          "ms": ms[len(ms) // 2], "ms_p10": ms[0], "ms_p90": ms[-1]})

        x, w, gain = draw(1024, 1024), draw(1024, 1024), draw(1024)
        line("ops", "softmax 1024 x 1024", lambda: functional.softmax(x, -1))
        line("ops", "layer_norm 1024 x 1024",
             lambda: functional.layer_norm(x, (1024,), gain, gain))
        line("ops", "rms_norm 1024 x 1024", lambda: functional.rms_norm(x, (1024,), gain, 1e-6))
        line("ops", "matmul 1024 x 1024 x 1024", lambda: functional.linear(x, w))
        for length in (512, 1024):
            q, k, v = (draw(1, heads, length, 64) for heads in (14, 2, 2))
            line("ops", f"attention {length}, 14/2 heads of 64, causal",
                 lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                                 enable_gqa=True))
        for size, rank in ((512, 8), (1024, 4), (1024, 8), (1024, 16), (1024, 32), (1024, 64),
                           (2048, 8)):
            x, w, a, b = draw(size, size), draw(size, size), draw(rank, size), draw(size, rank)
            line("lora", f"forward {size} x {size}, rank {rank}",
                 lambda: torch.addmm(functional.linear(x, w), functional.linear(x, a), b.t(),
                                     alpha=2.0))
        return {"lines": lines}


if __name__ == "__main__":
    torch.manual_seed(0)
    cuda_peer.serve(lambda job: {"train": Train, "decode": Decode, "ops": Ops}[job["kind"]](job))
