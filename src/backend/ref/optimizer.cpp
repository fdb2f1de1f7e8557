// SPDX-License-Identifier: Apache-2.0
// grad_norm, adamw.
#include <cmath>

#include "backend/ref/scalar.h"

namespace wick::ref {

template <class S>
void grad_norm_fwd(const StepArgs& args) {
  In<S> g(args.in[0]);  // [P]
  Out<S> y(args, 0);    // [1]
  Sum<S> sum = 0;
  for (int64_t i = 0; i < g.cols; ++i) sum += g[i] * g[i];
  y.put(0, std::sqrt(sum));
}

template <class S>
void adamw_fwd(const StepArgs& args) {
  In<S> hyper(args.in[0]), norm(args.in[1]);  // [8], [1]
  Out<S> params(args, 0), m(args, 1), v(args, 2), g(args, 3);
  Sum<S> lr = hyper[0], beta1 = hyper[1], beta2 = hyper[2], eps = hyper[3], decay = hyper[4];
  Sum<S> clip = hyper[5], correction1 = hyper[6], correction2 = hyper[7];
  Sum<S> one = 1, clip_factor = one;
  if (real_part(clip) > 0 && real_part(norm[0]) > real_part(clip)) clip_factor = clip / norm[0];
  for (const ParamGroup& group : attr_of<ParamGroups>(args).groups) {
    Sum<S> group_lr = lr * Sum<S>(group.lr_scale), group_decay = decay * Sum<S>(group.decay_scale);
    for (int64_t i = group.begin; i < group.end; ++i) {
      Sum<S> p = params.data[i], gi = clip_factor * Sum<S>(g.data[i]);
      Sum<S> mi = beta1 * Sum<S>(m.data[i]) + (one - beta1) * gi;
      Sum<S> vi = beta2 * Sum<S>(v.data[i]) + (one - beta2) * gi * gi;
      Sum<S> update = mi / correction1 / (std::sqrt(vi / correction2) + eps);
      params.data[i] = static_cast<S>(p - group_lr * (update + group_decay * p));
      m.data[i] = static_cast<S>(mi);
      v.data[i] = static_cast<S>(vi);
      g.data[i] = S(0);
    }
  }
}

WICK_REF_KERNEL(grad_norm_fwd);
WICK_REF_KERNEL(adamw_fwd);

}  // namespace wick::ref
