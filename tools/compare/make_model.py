#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what every engine of the comparison reads: one model, one adapter, one set of token ids.

    python tools/compare/make_model.py FOLDER

FOLDER/model      Qwen2.5-0.5B's shape with random weights in bf16, Hugging Face layout
FOLDER/adapter    rank 8 on q_proj and v_proj, A and B both non-zero, PEFT layout
FOLDER/data       train.jsonl: the training rows as text that tokenizes to exactly these ids
FOLDER/ids.json   the same rows and the prompts as ids and as text
FOLDER/gguf       what llama.cpp reads: f32, bf16, Q8_0, Q4_0, head included, from the same numbers

Each word of the texts is an added token of the tokenizer, so that texts and ids are the same thing.
Does nothing where FOLDER is complete. Needs numpy and gguf.
"""

import json
import sys
from pathlib import Path

import numpy as np

from word_tokenizer import write_tokenizer

FORMAT = 4  # raise it when the contents change
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 24, 896, 14, 2, 64, 4864, 151936
RANK, ALPHA = 8, 16
TOKENS, ROWS, WORDS = 512, 16, 2048
EPS, THETA = 1e-6, 1000000.0


def word_id(word):
    return 300 + word * 74  # spread over the vocabulary, below it for every word


def shapes():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (HIDDEN,)
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            yield f"{at}self_attn.{name}_proj.weight", (rows * HEAD, HIDDEN)
            yield f"{at}self_attn.{name}_proj.bias", (rows * HEAD,)
        yield at + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD)
        yield at + "post_attention_layernorm.weight", (HIDDEN,)
        yield at + "mlp.gate_proj.weight", (FFN, HIDDEN)
        yield at + "mlp.up_proj.weight", (FFN, HIDDEN)
        yield at + "mlp.down_proj.weight", (HIDDEN, FFN)
    yield "model.norm.weight", (HIDDEN,)


def to_bf16(values):
    """The bits of the nearest bf16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_safetensors(path, tensors):
    """tensors: name -> (type, shape, bytes)."""
    header, offset = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape),
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in tensors.values():
            file.write(data)


def make_weights():
    rng = np.random.default_rng(20)
    weights = {}
    for name, shape in shapes():
        noise = rng.standard_normal(shape, dtype=np.float32)
        weights[name] = to_bf16(1 + 0.1 * noise if "norm" in name else 0.02 * noise)
    return weights


def write_model(folder, weights):
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 32768, "rms_norm_eps": EPS, "rope_theta": THETA,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_sliding_window": False,
        "attention_dropout": 0.0, "vocab_size": VOCAB,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_safetensors(folder / "model.safetensors",
                      {n: ("BF16", w.shape, w.tobytes()) for n, w in weights.items()})
    write_tokenizer(folder, [word_id(w) for w in range(WORDS)])


def write_adapter(folder):
    rng = np.random.default_rng(21)
    tensors = {}
    for layer in range(LAYERS):
        for name, rows in (("q", HEADS * HEAD), ("v", KV_HEADS * HEAD)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}_proj."
            a = rng.uniform(-1, 1, (RANK, HIDDEN)).astype(np.float32) / np.sqrt(HIDDEN)
            b = 0.02 * rng.standard_normal((rows, RANK), dtype=np.float32)
            tensors[at + "lora_A.weight"] = ("F32", a.shape, a.astype(np.float32).tobytes())
            tensors[at + "lora_B.weight"] = ("F32", b.shape, b.tobytes())
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA,
        "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"], "bias": "none",
        "fan_in_fan_out": False, "base_model_name_or_path": "model"}, indent=1))


def write_ids(folder):
    """Rows of TOKENS + 1 ids, so that every one of TOKENS positions is supervised."""
    rng = np.random.default_rng(22)
    # Frequent and rare words, as in text, so that ten steps have something to learn.
    share = 1 / np.arange(1, WORDS + 1)
    rows = rng.choice(WORDS, (ROWS, TOKENS + 1), p=share / share.sum()).tolist()

    def both(words):
        return {"ids": [word_id(w) for w in words], "text": "".join(f"<{w}>" for w in words)}

    contents = {"rows": [both(r) for r in rows],
                "prompt512": both(rows[-1][:512]), "prompt128": both(rows[-2][:128])}
    (folder / "ids.json").write_text(json.dumps(contents))
    (folder / "data").mkdir(exist_ok=True)
    with open(folder / "data" / "train.jsonl", "w") as file:
        for row in contents["rows"]:
            file.write(json.dumps({"text": row["text"]}) + "\n")


def gguf_name(name):
    parts = {"model.embed_tokens": "token_embd", "model.norm": "output_norm",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    stem, kind = name.rsplit(".", 1)
    if stem in parts:
        return f"{parts[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{parts[rest]}.{kind}"


def write_gguf(path, weights, kind):
    import gguf
    types = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("comparison")
    writer.add_block_count(LAYERS)
    writer.add_context_length(32768)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("no_vocab")
    for name, bits in weights.items():
        if bits.ndim == 1 or kind == "f32":
            writer.add_tensor(gguf_name(name), from_bf16(bits))
        elif kind == "bf16":
            writer.add_tensor(gguf_name(name), bits.view(np.uint8).reshape(bits.shape[0], -1),
                              raw_dtype=types.BF16)
        else:
            quantised = {"q8_0": types.Q8_0, "q4_0": types.Q4_0}[kind]
            data = gguf.quants.quantize(from_bf16(bits), quantised)
            writer.add_tensor(gguf_name(name), data, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder = Path(sys.argv[1])
    done = folder / "complete"
    if done.exists() and done.read_text() == str(FORMAT):
        return
    for name in ("model", "adapter", "gguf"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    done.unlink(missing_ok=True)
    (folder / "reference.json").unlink(missing_ok=True)
    weights = make_weights()
    write_model(folder / "model", weights)
    write_adapter(folder / "adapter")
    write_ids(folder)
    for kind in ("f32", "bf16", "q8_0", "q4_0"):
        write_gguf(folder / "gguf" / f"{kind}.gguf", weights, kind)
    done.write_text(str(FORMAT))


if __name__ == "__main__":
    main()
