// SPDX-License-Identifier: Apache-2.0
// The terms of an output's elements, where a kernel may round each of them: what tolerance.h's
// rounded_terms is a bound per unit of.
#include <algorithm>
#include <cmath>

#include "ops/case.h"

namespace wick::ops {
namespace {

// linear's: the same product of squares, without what is added to it.
std::vector<std::vector<double>> squared_terms(Case squares, Dir dir) {
  const double scale = std::get<LinearAttr>(squares.attr).scale;
  squares.attr = LinearAttr{};
  for (Arg& a : squares.args)
    for (double& x : a.data) x = a.name == "b" ? 0 : x * x;
  auto sums = run_reference(squares, dir);
  for (auto& sum : sums)
    for (double& x : sum) x *= scale * scale;
  return sums;
}

// A head's gradients of weights: each row by itself gives a term of every element.
std::vector<std::vector<double>> squared_rows(Case row, Dir dir) {
  const std::vector<int32_t> targets = row.arg("targets").ints;
  std::vector<std::vector<double>> sums;
  for (size_t m = 0; m < targets.size(); ++m) {
    std::vector<int32_t>& only = row.arg("targets").ints;
    std::fill(only.begin(), only.end(), -1);
    only[m] = targets[m];
    const auto terms = run_reference(row, dir);
    if (sums.empty())
      for (const auto& term : terms) sums.emplace_back(term.size());
    for (size_t i = 0; i < terms.size(); ++i)
      for (size_t k = 0; k < terms[i].size(); ++k) sums[i][k] += terms[i][k] * terms[i][k];
  }
  return sums;
}

// attention's: p v, and in reverse ds k, ds q and p dy, with ds = p (dy·v - dy·y).
std::vector<std::vector<double>> squared_attention(const Case& c, Dir dir) {
  const auto& a = std::get<AttentionAttr>(c.attr);
  const Arg &q = c.arg("q"), &k = c.arg("k"), &v = c.arg("v");
  const int64_t rows = q.shape.rows(), wide = q.shape.cols(), narrow = k.shape.cols();
  const double scale = a.scale;
  auto at = [](const Arg& arg, int64_t row, int64_t column) {
    return arg.data[static_cast<size_t>(row * arg.shape.cols() + column)];
  };
  auto zeros = [](const Arg& arg) {
    return std::vector<double>(static_cast<size_t>(arg.shape.elements()));
  };
  std::vector<double> y2 = zeros(q), dq2 = zeros(q), dk2 = zeros(k), dv2 = zeros(v);
  auto add = [](std::vector<double>& to, int64_t i, double term) {
    to[static_cast<size_t>(i)] += term * term;
  };
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t end = c.arg("end").ints[static_cast<size_t>(t)];
    int64_t begin = c.arg("begin").ints[static_cast<size_t>(t)];
    if (a.window > 0) begin = std::max(begin, end - a.window);
    for (int64_t h = 0; h < a.heads && begin < end; ++h) {
      const int64_t col = h * a.head_dim, kv = h / (a.heads / a.kv_heads) * a.head_dim;
      auto dot = [&](const Arg& x, const Arg& z, int64_t j, int64_t z_col) {
        double sum = 0;
        for (int64_t e = 0; e < a.head_dim; ++e) sum += at(x, t, col + e) * at(z, j, z_col + e);
        return sum;
      };
      std::vector<double> p;
      double most = -INFINITY, total = 0;
      for (int64_t j = begin; j < end; ++j) {
        p.push_back(scale * dot(q, k, j, kv));
        most = std::max(most, p.back());
      }
      for (double& s : p) total += s = std::exp(s - most);
      const double dy_y = dir == Dir::kForward ? 0 : dot(c.arg("dy"), c.arg("y"), t, col);
      for (int64_t j = begin; j < end; ++j) {
        const double share = p[static_cast<size_t>(j - begin)] / total;
        const double ds =
            dir == Dir::kForward ? 0 : share * (dot(c.arg("dy"), v, j, kv) - dy_y) * scale;
        for (int64_t e = 0; e < a.head_dim; ++e) {
          const int64_t own = t * wide + col + e, other = j * narrow + kv + e;
          add(y2, own, share * at(v, j, kv + e));
          if (dir == Dir::kForward) continue;
          add(dq2, own, ds * at(k, j, kv + e));
          add(dk2, other, ds * at(q, t, col + e));
          add(dv2, other, share * at(c.arg("dy"), t, col + e));
        }
      }
    }
  }
  if (dir == Dir::kForward) return {y2, {}};
  return {dq2, dk2, dv2};
}

}  // namespace

std::vector<std::vector<double>> term_norms(const Case& c, Dir dir) {
  const std::vector<std::string>& outputs = dir == Dir::kForward ? c.fwd_out : c.bwd_out;
  std::vector<std::vector<double>> norms(outputs.size());
  auto own = [&](const std::string& name) {
    return !name.empty() && c.arg(name).own_terms && c.arg(name).half_terms > 0;
  };
  if (std::none_of(outputs.begin(), outputs.end(), own)) return norms;
  Case terms = c;
  for (Arg& a : terms.args) a.mode = OutMode::kWrite;
  auto sums = c.op == Op::kLinear      ? squared_terms(terms, dir)
              : c.op == Op::kAttention ? squared_attention(terms, dir)
                                       : squared_rows(terms, dir);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!own(outputs[i])) continue;
    norms[i] = std::move(sums[i]);
    for (double& x : norms[i]) x = std::sqrt(x);
  }
  return norms;
}

}  // namespace wick::ops
