// SPDX-License-Identifier: Apache-2.0
// preference_loss, kl_head: losses that compare.
#include "plan/preference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/ref/scalar.h"

namespace wick::ref {
namespace {

// log softmax(Σ x[m] wᵀ / τ) over the pairs of x and w, and the logarithm it is less.
template <class S>
struct LogProbabilities {
  std::vector<Sum<S>> of;
  Sum<S> lse;
};
template <class S>
LogProbabilities<S> log_probabilities(const std::vector<In<S>>& x, const std::vector<In<S>>& w,
                                      int64_t m, double temperature) {
  std::vector<Sum<S>> z(static_cast<size_t>(w[0].rows));
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t v = 0; v < w[0].rows; ++v) {
    Sum<S>& at = z[static_cast<size_t>(v)];
    for (size_t i = 0; i < x.size(); ++i)
      for (int64_t d = 0; d < w[i].cols; ++d) at += x[i](m, d) * w[i](v, d);
    at /= temperature;
    largest = std::max(largest, real_part(at));
  }
  Sum<S> total = 0;
  for (Sum<S> at : z) total += std::exp(at - Sum<S>(largest));
  const Sum<S> lse = Sum<S>(largest) + std::log(total);
  for (Sum<S>& at : z) at -= lse;
  return {std::move(z), lse};
}

// kl_head's operands, whose order is the same in both directions from input `x_at` on but for the
// sums that backward has before h.
template <class S>
struct Kl {
  std::vector<In<S>> x, w, tx, tw;  // the student's may have a second pair: h and b
  Ints targets;
  double temperature;
  Kl(const StepArgs& args, size_t x_at, size_t h_at)
      : x{In<S>(args.in[x_at])},
        w{In<S>(args.in[x_at + 1])},
        tx{In<S>(args.in[x_at + 2])},
        tw{In<S>(args.in[x_at + 3])},
        targets(args.in[x_at + 4]),
        temperature(static_cast<double>(attr_of<KlAttr>(args).temperature)) {
    if (!args.in[h_at]) return;
    x.push_back(In<S>(args.in[h_at]));
    w.push_back(In<S>(args.in[h_at + 1]));
  }
  LogProbabilities<S> student(int64_t m) const { return log_probabilities(x, w, m, temperature); }
  LogProbabilities<S> teacher(int64_t m) const { return log_probabilities(tx, tw, m, temperature); }
};

}  // namespace

template <class S>
void preference_loss_fwd(const StepArgs& args) {
  In<S> logp(args.in[0]), reference(args.in[1]), tokens(args.in[2]);  // [2P] each
  Out<S> loss(args, 0), reward(args, 1), slope(args, 2);              // [P], [2P], [2P]
  const auto& attr = attr_of<PreferenceAttr>(args);
  for (int64_t p = 0; p < loss.cols; ++p) {
    const Sum<S> l[2] = {logp[2 * p], logp[2 * p + 1]};
    const Sum<S> r[2] = {reference[2 * p], reference[2 * p + 1]};
    const double n[2] = {real_part(tokens[2 * p]), real_part(tokens[2 * p + 1])};
    const PairCost<Sum<S>> cost = preference_cost(attr, l, r, n);
    loss.put(p, cost.loss);
    for (int i = 0; i < 2; ++i) {
      if (reward) reward.put(2 * p + i, cost.reward[i]);
      if (slope) slope.put(2 * p + i, cost.slope[i]);
    }
  }
}

template <class S>
void preference_loss_bwd(const StepArgs& args) {
  In<S> dloss(args.in[0]), slope(args.in[1]);  // [P], [2P]
  Out<S> dlogp(args, 0);                       // [2P]
  for (int64_t i = 0; i < dlogp.cols; ++i) dlogp.put(i, dloss[i / 2] * slope[i]);
}

template <class S>
void kl_head_fwd(const StepArgs& args) {
  const Kl<S> of(args, 0, 5);
  Out<S> kl(args, 0), lse(args, 2);  // [M], [M, 2]
  std::vector<Out<S>> slopes;        // dkl_dx [M, D], dkl_dh [M, R]
  for (size_t i = 0; i < of.x.size(); ++i) slopes.emplace_back(args, i == 0 ? 1 : 3);
  for (int64_t m = 0; m < of.x[0].rows; ++m) {
    if (of.targets[m] < 0) {
      kl.put(m, 0);
      for (int64_t side = 0; lse && side < 2; ++side) lse.put(m, side, 0);
      for (const Out<S>& slope : slopes)
        for (int64_t d = 0; slope && d < slope.cols; ++d) slope.put(m, d, 0);
      continue;
    }
    const auto [p, student_lse] = of.student(m);
    const auto [q, teacher_lse] = of.teacher(m);
    Sum<S> sum = 0;
    for (size_t v = 0; v < p.size(); ++v) sum += std::exp(q[v]) * (q[v] - p[v]);
    kl.put(m, sum);
    if (lse) {
      lse.put(m, 0, student_lse);
      lse.put(m, 1, teacher_lse);
    }
    for (size_t i = 0; i < slopes.size(); ++i)
      for (int64_t d = 0; slopes[i] && d < slopes[i].cols; ++d) {
        Sum<S> slope = 0;
        for (size_t v = 0; v < p.size(); ++v)
          slope += (std::exp(p[v]) - std::exp(q[v])) * of.w[i](static_cast<int64_t>(v), d);
        slopes[i].put(m, d, slope / of.temperature);
      }
  }
}

template <class S>
void kl_head_bwd(const StepArgs& args) {
  In<S> dkl(args.in[0]);  // [M]
  for (size_t i : {0, 1}) {
    // dx [M, D] = dkl dkl_dx, dh [M, R] the same.
    Out<S> dx(args, static_cast<int>(2 * i));
    if (!dx) continue;
    In<S> slope(args.in[i == 0 ? 1 : 10]);
    for (int64_t m = 0; m < dx.rows; ++m)
      for (int64_t d = 0; d < dx.cols; ++d) dx.put(m, d, dkl[m] * slope(m, d));
  }
  Out<S> dw(args, 1), db(args, 3);  // [V, D], [V, R]
  if (!dw && !db) return;
  const Kl<S> of(args, 2, 8);
  std::vector<std::vector<Sum<S>>> g;  // of the logits, by row; empty for those that are ignored
  for (int64_t m = 0; m < of.x[0].rows; ++m) {
    g.emplace_back();
    if (of.targets[m] < 0) continue;
    const std::vector<Sum<S>> p = of.student(m).of, q = of.teacher(m).of;
    for (size_t v = 0; v < p.size(); ++v)
      g.back().push_back(dkl[m] * (std::exp(p[v]) - std::exp(q[v])) / of.temperature);
  }
  for (size_t i = 0; i < of.x.size(); ++i) {
    const Out<S>& to = i == 0 ? dw : db;
    for (int64_t v = 0; to && v < to.rows; ++v)
      for (int64_t d = 0; d < to.cols; ++d) {
        Sum<S> sum = 0;
        for (size_t m = 0; m < g.size(); ++m)
          if (!g[m].empty())
            sum += g[m][static_cast<size_t>(v)] * of.x[i](static_cast<int64_t>(m), d);
        to.put(v, d, sum);
      }
  }
}

WICK_REF_KERNEL(preference_loss_fwd);
WICK_REF_KERNEL(preference_loss_bwd);
WICK_REF_KERNEL(kl_head_fwd);
WICK_REF_KERNEL(kl_head_bwd);

}  // namespace wick::ref
