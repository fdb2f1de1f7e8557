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

// log softmax(x[m] wᵀ / τ)
template <class S>
std::vector<Sum<S>> log_probabilities(const In<S>& x, int64_t m, const In<S>& w,
                                      double temperature) {
  std::vector<Sum<S>> z(static_cast<size_t>(w.rows));
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t v = 0; v < w.rows; ++v) {
    Sum<S>& at = z[static_cast<size_t>(v)];
    for (int64_t d = 0; d < w.cols; ++d) at += x(m, d) * w(v, d);
    at /= temperature;
    largest = std::max(largest, real_part(at));
  }
  Sum<S> total = 0;
  for (Sum<S> at : z) total += std::exp(at - Sum<S>(largest));
  const Sum<S> lse = Sum<S>(largest) + std::log(total);
  for (Sum<S>& at : z) at -= lse;
  return z;
}

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
  In<S> x(args.in[0]), w(args.in[1]), tx(args.in[2]), tw(args.in[3]);
  Ints targets(args.in[4]);
  Out<S> kl(args, 0), dkl_dx(args, 1);  // [M], [M, D]
  const double temperature = static_cast<double>(attr_of<KlAttr>(args).temperature);
  for (int64_t m = 0; m < x.rows; ++m) {
    if (targets[m] < 0) {
      kl.put(m, 0);
      for (int64_t d = 0; dkl_dx && d < x.cols; ++d) dkl_dx.put(m, d, 0);
      continue;
    }
    const std::vector<Sum<S>> p = log_probabilities(x, m, w, temperature),
                              q = log_probabilities(tx, m, tw, temperature);
    Sum<S> sum = 0;
    for (size_t v = 0; v < p.size(); ++v) sum += std::exp(q[v]) * (q[v] - p[v]);
    kl.put(m, sum);
    for (int64_t d = 0; dkl_dx && d < x.cols; ++d) {
      Sum<S> slope = 0;
      for (size_t v = 0; v < p.size(); ++v)
        slope += (std::exp(p[v]) - std::exp(q[v])) * w(static_cast<int64_t>(v), d);
      dkl_dx.put(m, d, slope / temperature);
    }
  }
}

template <class S>
void kl_head_bwd(const StepArgs& args) {
  In<S> dkl(args.in[0]), dkl_dx(args.in[1]);  // [M], [M, D]
  Out<S> dx(args, 0);                         // [M, D]
  for (int64_t m = 0; m < dx.rows; ++m)
    for (int64_t d = 0; d < dx.cols; ++d) dx.put(m, d, dkl[m] * dkl_dx(m, d));
}

WICK_REF_KERNEL(preference_loss_fwd);
WICK_REF_KERNEL(preference_loss_bwd);
WICK_REF_KERNEL(kl_head_fwd);
WICK_REF_KERNEL(kl_head_bwd);

}  // namespace wick::ref
