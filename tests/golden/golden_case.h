// SPDX-License-Identifier: Apache-2.0
// One case of tests/golden (README.md there says what it holds), and its rows and settings in the
// form in which the trainer and the generator take them.
#pragma once

#include <string>
#include <vector>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "data/packing.h"
#include "io/safetensors.h"
#include "model/config.h"
#include "model/decoder.h"
#include "model/weights.h"
#include "train/step.h"

namespace wick::golden {

struct Case {
  explicit Case(const std::string& name);
  // A case of kinds/, whose model is another case's.
  static Case kind(const std::string& name);

  std::vector<float> floats(const std::string& tensor) const;
  std::vector<int32_t> ints(const std::string& tensor) const;
  bool has(const std::string& tensor) const { return expected.has(tensor); }

  std::string folder;
  Json meta;  // expected.json
  SafetensorsFile expected;
  ModelConfig config;
  ModelWeights weights;
  std::vector<float> adapter_params;  // filled by the next one's constructor
  Adapter adapter;

 private:
  Case(const std::string& folder, const std::string& model);
};

// The names of all cases.
std::vector<std::string> case_names();
std::vector<std::string> kind_names();

// Rows of the case one after the other, then unused slots and targets up to the limits.
Pack make_pack(const Case& c, const std::vector<size_t>& rows, const PackLimits& limits);
// For all rows in one pack, with a few slots and targets to spare.
PackLimits roomy_limits(const Case& c);
AdamwSettings adamw_settings(const Case& c, int64_t step);

// Logits [T, V] of one row by a prefill, with or without the adapter.
std::vector<float> logits(Case& c, Backend& backend, const std::vector<int32_t>& ids,
                          bool with_adapter);

// Buffers of f32 on a device.
BufferPtr upload(Backend& backend, const std::vector<float>& data);

}  // namespace wick::golden
