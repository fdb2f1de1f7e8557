// SPDX-License-Identifier: Apache-2.0
// One case of tests/golden (README.md there says what it holds) and plans over its model, recorded
// as training does it: all rows in one pack, one flat state for what is trained.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "io/safetensors.h"
#include "model/config.h"
#include "model/decoder.h"
#include "model/weights.h"

namespace wick::golden {

enum class Trained { kAdapter, kWeights };

struct Case {
  explicit Case(const std::string& name);

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
};

// The names of all cases.
std::vector<std::string> case_names();

// Logits [T, V] of one row, with or without the adapter.
std::vector<float> logits(Case& c, Backend& backend, const std::vector<int32_t>& ids,
                          bool with_adapter);

// Training over all rows of a case. step() gives the loss before its update.
class Trainer {
 public:
  struct Options {
    Trained trained = Trained::kAdapter;
    bool recompute = false;
    bool fused = true;
  };
  Trainer(Case& c, Backend& backend, const Options& options);

  float forward_backward();  // accumulates gradients
  float update();            // AdamW with the case's settings; the norm of all gradients
  // By the flat layout: adapter tensors as layout() names them, or the tensors of the model's file.
  std::vector<float> gradient(const std::string& tensor) const { return part(grads_, tensor); }
  std::vector<float> param(const std::string& tensor) const { return part(params_, tensor); }
  std::vector<float> params() const;  // all, by the layout
  const ParamLayout& layout() const { return layout_; }

 private:
  std::vector<float> part(const BufferPtr& buffer, const std::string& tensor) const;

  Case& c_;
  Backend& backend_;
  ParamLayout layout_;
  BufferPtr params_, grads_, m_, v_;
  std::unique_ptr<Program> step_, optimizer_;
  ValueId loss_ = kNone, norm_ = kNone, hyper_ = kNone;
  int updates_ = 0;
};

}  // namespace wick::golden
