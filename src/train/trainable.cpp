// SPDX-License-Identifier: Apache-2.0
// What a step trains, and how its optimizer is to see it.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "plan/param_groups.h"
#include "train/step.h"

namespace wick {

namespace {

// muon's factor of a matrix.
float tall_factor(int64_t rows, int64_t cols) {
  return std::sqrt(std::max(1.0f, static_cast<float>(rows) / static_cast<float>(cols)));
}

// An entry's tensors as the model's file has them: q, k and v are one product, but matrices apart.
std::vector<Shape> tensors_of(const Trainable& trainable, size_t entry) {
  const Shape& whole = trainable.layout.entries()[entry].shape;
  if (trainable.specs.empty()) return {whole};
  std::vector<Shape> shapes;
  int64_t elements = 0;
  for (const WeightSpec::Part& part : trainable.specs[entry].parts) {
    shapes.push_back(part.shape);
    elements += part.shape.elements();
  }
  if (elements != whole.elements()) return {whole};
  return shapes;
}

}  // namespace

ParamGroups update_groups(const Trainable& trainable, Op optimizer) {
  ParamGroups made;
  made.sets = trainable.groups.sets;
  const auto& entries = trainable.layout.entries();
  WICK_CHECK(trainable.groups.groups.empty() || trainable.groups.groups.size() == entries.size());
  auto add = [&](const ParamGroup& g) {
    ParamGroup* last = made.groups.empty() ? nullptr : &made.groups.back();
    if (last && !optimizer_sees_matrices(optimizer) && last->lr_scale == g.lr_scale &&
        last->decay_scale == g.decay_scale && last->set == g.set) {
      last->end = g.end;
      last->rows = 0;
    } else {
      made.groups.push_back(g);
    }
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    ParamGroup g;
    if (!trainable.groups.groups.empty()) g = trainable.groups.groups[i];
    g.end = entries[i].offset;
    g.lr_scale *= entries[i].lr_scale;
    for (const Shape& shape : tensors_of(trainable, i)) {
      ParamGroup one = g;
      one.begin = g.end;
      one.end = g.end = one.begin + shape.elements();
      one.rows = shape.rank() >= 2 ? shape.elements() / shape.cols() : 0;
      if (optimizer == Op::kMuon && entries[i].turned && one.rows > 0 && one.end > one.begin) {
        const int64_t cols = group_cols(one);
        const float wanted = tall_factor(cols, one.rows) / tall_factor(one.rows, cols);
        one.lr_scale *= wanted;
        one.decay_scale /= wanted;  // decay is times the rate, too
      }
      add(one);
    }
  }
  return made;
}

Trainable train_adapter(const Adapter& adapter) {
  Trainable t;
  t.adapter = &adapter;
  t.layout = adapter.layout();
  return t;
}

Trainable train_adapters(std::span<const Adapter* const> lanes) {
  Trainable t;
  t.lanes.assign(lanes.begin(), lanes.end());
  t.groups.sets = static_cast<int32_t>(lanes.size());
  for (size_t k = 0; k < lanes.size(); ++k) {
    const Trainable one = train_adapter(*lanes[k]);
    const auto& entries = one.layout.entries();
    for (size_t i = 0; i < entries.size(); ++i) {
      t.layout.add(cat(k, "/", entries[i].name), entries[i].shape, entries[i].lr_scale,
                   entries[i].turned);
      ParamGroup g;
      if (!one.groups.groups.empty()) g = one.groups.groups[i];
      g.set = static_cast<int32_t>(k);
      t.groups.groups.push_back(g);
    }
  }
  return t;
}

Trainable train_weights(const ModelConfig& config, int64_t num_layers) {
  if (num_layers > config.layers)
    fail(ErrorCode::kInvalidArgument, "--num-layers is ", num_layers, ", but the model has ",
         config.layers, " layers; use -1 for all weights");
  Trainable t;
  for (const WeightSpec& spec : weight_specs(config)) {
    bool wanted = num_layers <= 0;
    for (int64_t layer = config.layers - std::max<int64_t>(num_layers, 0);
         !wanted && layer < config.layers; ++layer)
      wanted = spec.name.rfind(cat("model.layers.", layer, "."), 0) == 0;
    if (!wanted) continue;
    t.layout.add(spec.name, spec.shape);
    t.specs.push_back(spec);
  }
  return t;
}

int64_t first_trained_block(const Trainable& trainable, const ModelConfig& config) {
  int64_t first = config.layers;
  for (const ParamLayout::Entry& e : trainable.layout.entries()) {
    constexpr std::string_view kBlocks = "layers.";
    const size_t at = e.name.find(kBlocks);
    if (at != std::string::npos)
      first = std::min<int64_t>(first, std::atoll(e.name.c_str() + at + kBlocks.size()));
    else if (e.name.find("embed") != std::string::npos)
      first = 0;
  }
  return first;
}

std::vector<float> initial_weights(const Trainable& trainable, const ModelWeights& weights) {
  std::vector<float> params;
  params.reserve(static_cast<size_t>(trainable.layout.size()));
  for (const WeightSpec& spec : trainable.specs) {
    std::vector<float> values = weights.read_floats(spec);
    params.insert(params.end(), values.begin(), values.end());
  }
  return params;
}

}  // namespace wick
