// SPDX-License-Identifier: Apache-2.0
// What one pair costs: the formulas of PreferenceAttr, once for every back end and for the host.
#pragma once

#include <cmath>
#include <complex>

#include "plan/op.h"

#ifdef __CUDACC__
#define WICK_EVERYWHERE __host__ __device__
#else
#define WICK_EVERYWHERE
#endif

namespace wick {

// X is double, or complex<double> for the complex step. Index 0 is chosen, 1 rejected.
template <class X>
struct PairCost {
  X loss, reward[2], slope[2];
};

namespace preference {

WICK_EVERYWHERE inline double real_part(double x) { return x; }
inline double real_part(const std::complex<double>& x) { return x.real(); }

template <class X>
WICK_EVERYWHERE inline X sigmoid(X x) {
  using std::exp;
  if (real_part(x) >= 0) return X(1) / (X(1) + exp(-x));
  const X e = exp(x);
  return e / (X(1) + e);
}
template <class X>
WICK_EVERYWHERE inline X log_sigmoid(X x) {
  using std::exp, std::log;
  return real_part(x) >= 0 ? -log(X(1) + exp(-x)) : x - log(X(1) + exp(x));
}

// The chance that a sequence is not said, 1 - e^x, is never less: its logarithm must exist.
constexpr double kLeastOther = 1e-12;
template <class X>
WICK_EVERYWHERE inline X log_odds(X x, X& slope) {
  using std::exp, std::log;
  X other = X(1) - exp(x);
  if (real_part(other) < kLeastOther) {
    slope = X(1);
    return x - X(std::log(kLeastOther));
  }
  slope = X(1) / other;
  return x - log(other);
}

}  // namespace preference

template <class X>
WICK_EVERYWHERE inline PairCost<X> preference_cost(const PreferenceAttr& a, const X logp[2],
                                                   const X reference[2], const double tokens[2]) {
  using namespace preference;
  using Kind = PreferenceAttr::Kind;
  PairCost<X> y = {X(0), {X(0), X(0)}, {X(0), X(0)}};
  const X beta = X(static_cast<double>(a.beta));
  if (a.kind == Kind::kKto) {
    for (int i = 0; i < 2; ++i) {
      if (tokens[i] <= 0) continue;
      const double sign = i == 0 ? 1 : -1;
      const X weight = X(static_cast<double>(i == 0 ? a.desirable : a.undesirable));
      y.reward[i] = beta * (logp[i] - reference[i]);
      const X lost = sigmoid(-X(sign) * y.reward[i]);
      y.loss += weight * lost;
      y.slope[i] = -X(sign) * weight * beta * lost * (X(1) - lost);
    }
    return y;
  }
  if (tokens[0] <= 0 || tokens[1] <= 0) return y;
  if (a.kind == Kind::kOrpo) {
    X slope[2];
    X h = X(0);
    for (int i = 0; i < 2; ++i) {
      const X mean = logp[i] / X(tokens[i]);
      y.reward[i] = beta * mean;
      h += X(i == 0 ? 1 : -1) * log_odds(mean, slope[i]);
    }
    y.loss = -beta * log_sigmoid(h);
    const X dh = -beta * sigmoid(-h);
    for (int i = 0; i < 2; ++i) y.slope[i] = X(i == 0 ? 1 : -1) * dh * slope[i] / X(tokens[i]);
    return y;
  }
  const bool means = a.kind == Kind::kSimpo;
  const X gamma = X(means ? static_cast<double>(a.gamma) : 0.0);
  const X smooth = X(static_cast<double>(a.smoothing));
  for (int i = 0; i < 2; ++i)
    y.reward[i] = beta * (means ? logp[i] / X(tokens[i]) : logp[i] - reference[i]);
  const X h = y.reward[0] - y.reward[1] - gamma;
  y.loss = -(X(1) - smooth) * log_sigmoid(h) - smooth * log_sigmoid(-h);
  const X dh = smooth - sigmoid(-h);
  for (int i = 0; i < 2; ++i)
    y.slope[i] = X(i == 0 ? 1 : -1) * dh * beta / (means ? X(tokens[i]) : X(1));
  return y;
}

}  // namespace wick
