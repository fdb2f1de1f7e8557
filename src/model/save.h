// SPDX-License-Identifier: Apache-2.0
// Writing a model's weights as a folder in Hugging Face layout.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "model/decoder.h"
#include "model/weights.h"

namespace wick {

// The numbers of one weight in f32, or none: then the base's own bytes are written.
using WeightOverride = std::function<std::optional<std::vector<float>>(const WeightSpec&)>;

struct SavedWeights {
  int64_t tensors = 0, changed = 0, quantized = 0, bytes = 0;
};

// Writes model.safetensors. Overridden tensors are rounded to `dtype`, or to what the base has.
// Others are copied to the bit, unless `dtype` asks for another type. A tied head is not written.
// A quantised `dtype` is for matrices whose rows are whole groups, written as mlx does
// (quant/mlx.h) with the promise that wick reads back to the bit; all else stays as it is, codes in
// bf16. Throws: kIo; kCancelled where `should_stop`, asked between weights, says so.
SavedWeights save_weights(const std::filesystem::path& folder, const ModelConfig& config,
                          const ModelWeights& weights, std::optional<DType> dtype,
                          const WeightOverride& changed,
                          const std::function<bool()>& should_stop = {});

// What save_weights would write, headers apart.
int64_t saved_weight_bytes(const ModelConfig& config, const ModelWeights& weights,
                           std::optional<DType> dtype);

// f32 to the bytes of an element type, rounded to nearest even.
std::vector<std::byte> narrow(std::span<const float> values, DType dtype);

}  // namespace wick
