// SPDX-License-Identifier: Apache-2.0
#include "model/base_sketch.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/half.h"
#include "model/weight_rows.h"

namespace wick {

namespace {

// The first numbers of the first row of some matrices, from all depths. The row is what a reader of
// codes gives out at least.
constexpr size_t kMatrices = 8, kNumbers = 16;
constexpr char kCodes = 'q', kFloats = 'f';  // how the sketch begins
constexpr size_t kDigits = 4;                // of a number: the bits of a bf16
constexpr double kMostDistance = 100;        // a file may say any number, infinity too

}  // namespace

std::string base_sketch(const ModelConfig& config, const ModelWeights& weights) {
  const SafetensorsSet* files = weights.files();
  if (!files) return {};
  std::vector<WeightSpec::Part> matrices;
  for (const WeightSpec& spec : weight_specs(config))
    for (const WeightSpec::Part& part : spec.parts)
      // The embedding's first rows may be of tokens that nothing has trained.
      if (part.shape.rank() == 2 && part.tensor.find(".layers.") != std::string::npos)
        matrices.push_back(part);
  std::string text(1, kFloats);
  for (size_t i = 0; i < kMatrices && !matrices.empty(); ++i) {
    const WeightSpec::Part& part = matrices[i * matrices.size() / kMatrices];
    const int64_t cols = part.shape.cols();
    std::vector<float> row(static_cast<size_t>(cols));
    if (const auto codes = find_mlx_tensor(*files, part.tensor, part)) {
      text[0] = kCodes;
      mlx_rows(*codes, cols)->read(0, row.data());
    } else {
      const SafetensorsSet::Found found = files->find(part.tensor);
      widen_floats(*found.info->dtype, found.bytes().data(), row.size(), row.data());
    }
    row.resize(std::min(row.size(), kNumbers));
    for (const float x : row) {
      char digits[kDigits + 1];
      std::snprintf(digits, sizeof digits, "%04x", static_cast<unsigned>(to_bf16(x).bits));
      text += digits;
    }
  }
  return text;
}

double sketch_distance(const std::string& a, const std::string& b) {
  if (a.empty() || a.size() != b.size() || a.size() % kDigits != 1) return 0;
  auto number = [](const std::string& text, size_t at) {
    uint16_t bits = 0;
    std::from_chars(text.data() + at, text.data() + at + kDigits, bits, 16);
    return static_cast<double>(to_float(bf16{bits}));
  };
  double apart = 0, size = 0;
  for (size_t at = 1; at < a.size(); at += kDigits) {
    const double x = number(a, at), y = number(b, at);
    apart += (x - y) * (x - y);
    size += x * x;
  }
  // 4 bits in groups of 128 are off by about 0.15; bf16 is by 0.002.
  const double allowed = a[0] == kFloats && b[0] == kFloats ? 0.015 : 0.4;
  const double distance = std::sqrt(apart / std::max(size, 1e-30));
  return distance > allowed ? std::min(distance, kMostDistance) : 0;
}

}  // namespace wick
