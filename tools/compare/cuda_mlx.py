#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MLX and mlx-lm in the comparison on a GPU; see cuda_peer.py for how it is driven.

The training step is compiled and decoding runs one token ahead of its reading, as mlx-lm does both.
"""

import json
import time
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

import cuda_model
import cuda_peer
from peer_mlx import attach

DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16}
BATCHES = 32


def load(job):
    mx.set_default_device(mx.gpu if job["device"] == "cuda" else mx.cpu)
    model, _ = load_model(Path(job["model"]))
    model.set_dtype(DTYPES[job["dtype"]])
    mx.eval(model.parameters())
    return model


def memory():
    found = {"peak_bytes": mx.get_peak_memory()}
    mx.clear_cache()  # others have their turns now
    return found


class Train:
    def __init__(self, job):
        self.job = job
        self.model = model = load(job)
        attach(model, Path(job["adapter"]))
        model.train()
        optimizer = optim.AdamW(learning_rate=job["learning_rate"], weight_decay=0.01,
                                bias_correction=True)

        def loss_of(model, rows):
            logits = model(rows[:, :-1]).astype(mx.float32)
            return nn.losses.cross_entropy(logits, rows[:, 1:]).mean()

        self.state = [model.state, optimizer.state]
        value_and_grad = nn.value_and_grad(model, loss_of)

        @partial(mx.compile, inputs=self.state, outputs=self.state)
        def step(rows):
            loss, gradients = value_and_grad(model, rows)
            gradients, _ = optim.clip_grad_norm(gradients, 1.0)
            optimizer.update(model, gradients)
            return loss

        self.compiled = step
        vocab = cuda_model.read_config(job["model"])["vocab_size"]
        self.bench = [np.array(cuda_model.bench_ids(b, job["batch"], job["seq"] + 1, vocab))
                      for b in range(BATCHES)]
        self.next = 0
        rows = json.loads((Path(job["data"]) / "ids.json").read_text())["rows"]
        size = job["batch"]
        losses = [self.one(rows[i * size:(i + 1) * size]).item() for i in range(cuda_model.STEPS)]
        kinds = sorted({str(v.dtype).removeprefix("mlx.core.")
                        for _, v in tree_flatten(model.trainable_parameters())})
        moments = sorted({str(v.dtype).removeprefix("mlx.core.")
                          for k, v in tree_flatten(optimizer.state) if k.endswith((".m", ".v"))})
        self.facts = {"losses": losses, "weights": job["dtype"], "adapter": ",".join(kinds),
                      "moments": ",".join(moments), "peak_bytes": mx.get_peak_memory()}

    def one(self, rows):
        loss = self.compiled(mx.array(rows))
        mx.async_eval(loss, self.state)
        return loss

    def step(self):
        rows = self.bench[self.next % len(self.bench)]
        self.next += 1
        return self.one(rows)

    def block(self, words):
        mx.reset_peak_memory()
        found = cuda_peer.train_block(words, self.step, lambda losses: [x.item() for x in losses])
        return {**found, **memory()}


class Decode:
    def __init__(self, job):
        self.job = job
        self.model = load(job)
        checked = json.loads((Path(job["data"]) / "ids.json").read_text())["prompt"]["ids"]
        self.prompt = [checked]
        self.ahead = None
        tokens = [self.first_token()]
        for _ in range(15):
            tokens.append(self.following())
        vocab = cuda_model.read_config(job["model"])["vocab_size"]
        self.prompt = cuda_model.bench_prompt(job["prompt"], vocab)
        self.facts = {"first_token": tokens[0], "tokens": tokens, "weights": job["dtype"],
                      "peak_bytes": mx.get_peak_memory()}

    def forward(self, ids):
        token = self.model(ids, cache=self.cache)[:, -1].argmax(-1, keepdims=True)
        mx.async_eval(token)
        return token

    def first_token(self):
        self.cache = make_prompt_cache(self.model)
        self.token = self.forward(mx.array(self.prompt))
        first, self.ahead = self.token.item(), None
        return first

    def following(self):
        """The next token; the one after it is under way when this one is read."""
        current = self.forward(self.token) if self.ahead is None else self.ahead
        self.ahead = self.forward(current)
        self.token = current
        return current.item()

    def timed_first(self):
        if self.ahead is not None:
            mx.eval(self.ahead)
        since = time.perf_counter()
        self.first_token()
        return 1e3 * (time.perf_counter() - since)

    def block(self, words):
        mx.reset_peak_memory()
        return {**cuda_peer.decode_block(words, self.timed_first, self.following), **memory()}


if __name__ == "__main__":
    cuda_peer.serve(lambda job: {"train": Train, "decode": Decode}[job["kind"]](job))
