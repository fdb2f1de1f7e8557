// SPDX-License-Identifier: Apache-2.0
// The optimizers' formulas, and what they and their callers derive from ParamGroups (plan/op.h).
//
// Below g is the gradient after clipping, lr and decay are the group's own, and
// p <- p - lr * (step + decay * p) but for sgd.
//
// adamw      m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g²;  c1 = 1-beta1^t, c2 =
// 1-beta2^t,
//            both 1 without bias correction;  step = m / c1 / (sqrt(v / c2) + eps)
// sgd        as torch.optim.SGD: d = g + decay * p;  m = d at the first update, else
//            momentum m + (1-dampening) d;  p <- p - lr * (nesterov ? d + momentum m : m)
// lion       step = sign(beta1 m + (1-beta1) g);  then m = beta2 m + (1-beta2) g
// muon       m = momentum m + (1-momentum) g;  u = nesterov ? momentum m + (1-momentum) g : m.
//            A matrix [r, c]: step = sqrt(max(1, r / c)) * O(u), where O divides by the Frobenius
//            norm + 1e-7 and runs X <- aX + (bA + cA²)X, A = XXᵀ, with the short side as rows.
//            A vector: step = u, as MLX has it.
// adafactor  as in transformers, without a first moment: s = g² + eps1. A matrix: R = beta2 R +
//            (1-beta2) mean of s over a row, C likewise over a column; u = g / sqrt(R / mean(R) *
//            C). A vector: V = beta2 V + (1-beta2) s; u = g / sqrt(V). step = u / max(1, rms(u) /
//            threshold); scaled by the parameter, lr is times max(eps2, rms(p)).
// adamw8     A scale is the largest magnitude of its block. m is scale * sign(c) * (c / 127)² of a
//            code c in [-127, 127] (two's complement), v is scale * (c / 255)⁴ of a code in
//            [0, 255], both rounded to the nearest c, but a v above 0 to no less than 1.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/op.h"

namespace wick {

// A stretch of parameters of one set.
struct SetRange {
  int64_t begin = 0, end = 0;
  int32_t set = 0;
};

// Adjacent groups of one set joined, so that a set's norm does not depend on how it is grouped.
// Without groups: all of [0, params).
inline std::vector<SetRange> set_ranges(const ParamGroups& groups, int64_t params) {
  std::vector<SetRange> ranges;
  for (const ParamGroup& g : groups.groups) {
    if (!ranges.empty() && ranges.back().set == g.set && ranges.back().end == g.begin)
      ranges.back().end = g.end;
    else
      ranges.push_back({g.begin, g.end, g.set});
  }
  if (ranges.empty()) ranges.push_back({0, params, 0});
  return ranges;
}

inline int64_t group_cols(const ParamGroup& g) {
  return g.rows > 0 ? (g.end - g.begin) / g.rows : 0;
}

// Numbers that adafactor keeps of a group: its rows' and columns' means, or a vector's squares.
inline int64_t factor_count(const ParamGroup& g) {
  return g.rows > 0 ? g.rows + group_cols(g) : g.end - g.begin;
}

// Blocks of adamw8's codes in a group; the last one may be short.
constexpr int64_t kCodeBlock = 256;
inline int64_t code_blocks(const ParamGroup& g) {
  return (g.end - g.begin + kCodeBlock - 1) / kCodeBlock;
}
inline int64_t code_blocks(const ParamGroups& groups) {
  int64_t n = 0;
  for (const ParamGroup& g : groups.groups) n += code_blocks(g);
  return n;
}

// Newton-Schulz as Muon uses it: X <- aX + (bA + cA²)X with A = XXᵀ.
constexpr float kMuonA = 3.4445f, kMuonB = -4.7750f, kMuonC = 2.0315f, kMuonEps = 1e-7f;
constexpr int kMostMuonSteps = 8;

}  // namespace wick
