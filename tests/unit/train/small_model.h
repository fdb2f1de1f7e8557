// SPDX-License-Identifier: Apache-2.0
// A model of a few thousand weights, for tests of training steps.
#pragma once

#include "model/shapes.h"

namespace wick {

inline ModelConfig small_model(int64_t layers) {
  ModelConfig config = read_config(shape_config("qwen2.5-0.5b"), Json::object(), "test");
  config.layers = layers;
  config.windows.assign(static_cast<size_t>(layers), 0);
  config.hidden = 32;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 16;
  config.ffn = 48;
  config.vocab = 96;
  return config;
}

}  // namespace wick
