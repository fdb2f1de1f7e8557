// SPDX-License-Identifier: Apache-2.0
// The decoder that all families share: which weights it has, and one record function for training,
// prefill and decoding.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "adapter/lora.h"
#include "model/config.h"
#include "nn/linear.h"
#include "plan/recorder.h"

namespace wick {

// A weight as the plan has it: the rows of one or more tensors of the file, one after the other.
struct WeightSpec {
  std::string name;  // of the value: the tensor's name, or the group's (…self_attn.qkv_proj.weight)
  Shape shape;
  struct Part {
    std::string tensor;
    Shape shape;
  };
  std::vector<Part> parts;
  enum class Init { kNormal, kOnes, kZeros } init = Init::kNormal;  // for random weights
};

std::vector<WeightSpec> weight_specs(const ModelConfig& config);

// The linears of the blocks, in model order, then the embedding, the gains and the head, for
// adapters.
std::vector<LinearInfo> adaptable_linears(const ModelConfig& config);

// Weights, adapter numbers and trained weights, all counted.
int64_t weight_count(const ModelConfig& config);

// What one recording is about. All feeds are i32.
struct DecoderContext {
  int64_t tokens = 0;                      // T
  ValueId ids = kNone, positions = kNone;  // [T]
  ValueId begin = kNone, end = kNone;      // [T] rows of k and v that a token attends to
  ValueId rope_table = kNone;              // f32 [P, head_dim]
  nn::AdapterBinding adapter;
  std::function<ValueId(const WeightSpec&)> weight;   // the value of a weight or of a trained param
  std::function<ValueId(const WeightSpec&)> squares;  // Σ w² of each row, f32 [rows], for DoRA
  // Blocks [first, end) have their forward recorded again in the reverse pass.
  int64_t recompute_first = 0, recompute_end = 0;

  // A part of the model: blocks [first_block, end_block); end_block < 0: to the last norm. Above
  // the first block the residual stream is given, [T, hidden], in place of ids.
  int64_t first_block = 0, end_block = -1;
  ValueId stream = kNone;
  // It is rows `stream_rows` [T] of a state [S, hidden]; 0 where they are -1.
  ValueId stream_rows = kNone, stream_state = kNone;

  // Of the last norm's output the rows that are asked for, [M], 0 where they are -1; empty: all.
  // With `skips_rows`, what the last block makes behind its attention is made of those alone.
  // `row_keys` [M, 2] are their rows of adapter.keys.
  ValueId rows = kNone, row_keys = kNone;
  bool skips_rows = false;

  // Decoding over a cache: k and v of the new tokens are copied to `cache_rows` [T] of the layer's
  // states [S, kv_width], and attention reads those. Empty: attention among the T tokens.
  ValueId cache_rows = kNone;
  std::vector<ValueId> cache_k, cache_v;
};

// Token ids (or the residual stream) to the last norm's output [T, hidden], or the rows of it that
// are asked for, or to the residual stream behind end_block.
ValueId record_decoder(Recorder& r, const ModelConfig& config, const DecoderContext& context);

// The value of the head's weight [V, D]: the embedding when tied, unless an adapter has its own.
ValueId head_weight(Recorder& r, const ModelConfig& config, const DecoderContext& context);

// cos and sin of position * frequency for positions [0, P): f32 [P, head_dim], as transformers
// computes them (angles rounded to f32).
std::vector<float> rope_table(const ModelConfig& config, int64_t positions);

}  // namespace wick
