// SPDX-License-Identifier: Apache-2.0
// The terms of an output's elements, where a kernel may round each of them: what tolerance.h's
// rounded_terms is a bound per unit of.
#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

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

// Rows of probabilities p = softmax(scale (x wᵀ + h bᵀ)), and for each the squares of what it is
// off by, relative to itself and per unit of rounding: a logit is a sum of terms, each rounded
// where its weight is no bf16, and p is off by as much as its logit and, where the sum of all is
// made from them too, as that.
struct Probabilities {
  std::vector<double> p, off;  // [rows, words]

  Probabilities(const Case& c, std::initializer_list<std::array<const char*, 2>> factors,
                double scale, bool own_sum) {
    for (const auto& [x_name, w_name] : factors) {
      const Arg &x = c.arg(x_name), &w = c.arg(w_name);
      const int64_t rows = x.shape.rows(), words = w.shape.rows(), depth = x.shape.cols();
      p.resize(static_cast<size_t>(rows * words));
      off.resize(p.size());
      for (int64_t m = 0; m < rows; ++m)
        for (int64_t v = 0; v < words; ++v) {
          const double *row = &x.data[static_cast<size_t>(m * depth)],
                       *column = &w.data[static_cast<size_t>(v * depth)];
          double sum = 0, squares = 0;
          for (int64_t d = 0; d < depth; ++d) {
            const double term = row[d] * column[d];
            sum += term;
            squares += term * term;
          }
          const auto i = static_cast<size_t>(m * words + v);
          p[i] += scale * sum;
          if (w.dtype != DType::kBF16) off[i] += scale * scale * squares;
        }
    }
    const size_t words = static_cast<size_t>(c.arg((*factors.begin())[1]).shape.rows());
    for (size_t at = 0; at < p.size(); at += words) {
      const double most = *std::max_element(&p[at], &p[at] + words);
      double total = 0, of_sum = 0;
      for (size_t v = at; v < at + words; ++v) total += p[v] = std::exp(p[v] - most);
      for (size_t v = at; v < at + words; ++v) {
        p[v] /= total;
        of_sum += p[v] * p[v] * off[v];
      }
      for (size_t v = at; own_sum && v < at + words; ++v) off[v] += of_sum;
    }
  }
};

// head's and kl_head's: the difference f of two probabilities of a word, by its weights or, for
// their gradients, by the row. f is rounded, what it is made of is off already, and so may be what
// it is multiplied with. head may round p where it takes the target's away later.
std::vector<std::vector<double>> squared_differences(const Case& c, Dir dir) {
  const bool two = c.op == Op::kKlHead, forward = dir == Dir::kForward;
  const double scale = two ? 1 / std::get<KlAttr>(c.attr).temperature : 1;
  const bool pair = c.keys.contains("R");
  using Names = std::array<const char*, 2>;
  const Probabilities student =
      pair ? Probabilities(c, {Names{"x", "w"}, Names{"h", "b"}}, scale, forward)
           : Probabilities(c, {Names{"x", "w"}}, scale, forward);
  const Probabilities teacher =
      two ? Probabilities(c, {Names{"tx", "tw"}}, scale, forward) : student;
  const int64_t rows = c.arg("x").shape.rows(), words = c.arg("w").shape.rows();
  std::vector<double> f2(student.p.size()), all2(f2.size());  // f's rounding, and with what it has
  for (int64_t m = 0; m < rows; ++m) {
    const int32_t target = c.arg("targets").ints[static_cast<size_t>(m)];
    for (int64_t v = 0; v < words && target >= 0; ++v) {
      const auto i = static_cast<size_t>(m * words + v);
      const double p = student.p[i], q = two ? teacher.p[i] : v == target;
      const double f = two ? p - q : std::max(p, std::abs(p - q));
      f2[i] = f * f;
      all2[i] = f2[i] + p * p * student.off[i] + (two ? q * q * teacher.off[i] : 0);
    }
  }
  // to[d] += by * of[d]², for what is not zero.
  auto add_squares = [](double by, const double* of, int64_t depth, double* to) {
    for (int64_t d = 0; d < depth && by != 0; ++d) to[d] += by * of[d] * of[d];
  };
  // Sums over words by the rows of `name`, or over rows by those of the step's input.
  auto by_words = [&](const char* name) {
    const Arg& w = c.arg(name);
    const int64_t depth = w.shape.cols();
    std::vector<double> sums(static_cast<size_t>(rows * depth));
    for (int64_t i = 0; i < rows * words; ++i) {
      const double again = w.dtype != DType::kBF16 ? f2[static_cast<size_t>(i)] : 0;
      add_squares(scale * scale * (all2[static_cast<size_t>(i)] + again),
                  &w.data[static_cast<size_t>(i % words * depth)], depth,
                  &sums[static_cast<size_t>(i / words * depth)]);
    }
    return sums;
  };
  auto by_rows = [&](const char* name) {
    const Arg &x = c.arg(name), &slope = c.arg(two ? "dkl" : "dlogp");
    const int64_t depth = x.shape.cols();
    std::vector<double> sums(static_cast<size_t>(words * depth));
    for (int64_t i = 0; i < rows * words; ++i) {
      const double by = scale * slope.data[static_cast<size_t>(i / words)];
      add_squares(by * by * all2[static_cast<size_t>(i)],
                  &x.data[static_cast<size_t>(i / words * depth)], depth,
                  &sums[static_cast<size_t>(i % words * depth)]);
    }
    return sums;
  };
  // Of what the reverse pass makes again, by the row's own factor.
  auto by_slope = [&](std::vector<double> sums) {
    const std::vector<double>& slope = c.arg(two ? "dkl" : "dlogp").data;
    const size_t depth = sums.size() / slope.size();
    for (size_t i = 0; i < sums.size(); ++i) sums[i] *= slope[i / depth] * slope[i / depth];
    return sums;
  };
  std::vector<std::vector<double>> made;
  for (const std::string& name : forward ? c.fwd_out : c.bwd_out) {
    made.emplace_back();
    if (name == "dlogp_dx" || name == "dkl_dx") made.back() = by_words("w");
    if (name == "dlogp_dh" || name == "dkl_dh") made.back() = by_words("b");
    if (name == "dx") made.back() = by_slope(by_words("w"));
    if (name == "dh") made.back() = by_slope(by_words("b"));
    if (name == "dw") made.back() = by_rows("x");
    if (name == "db") made.back() = by_rows("h");
  }
  return made;
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
                                       : squared_differences(terms, dir);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!own(outputs[i])) continue;
    norms[i] = std::move(sums[i]);
    for (double& x : norms[i]) x = std::sqrt(x);
  }
  return norms;
}

}  // namespace wick::ops
