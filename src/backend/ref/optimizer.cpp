// SPDX-License-Identifier: Apache-2.0
// grad_norm and the optimizers.
#include <cmath>

#include "backend/ref/scalar.h"
#include "plan/param_groups.h"

namespace wick::ref {

template <class S>
void grad_norm_fwd(const StepArgs& args) {
  In<S> g(args.in[0]);  // [P]
  Out<S> y(args, 0);    // [S]
  std::vector<Sum<S>> sums(static_cast<size_t>(y.cols), Sum<S>(0));
  for (const SetRange& range : set_ranges(attr_of<ParamGroups>(args), g.cols))
    for (int64_t i = range.begin; i < range.end; ++i)
      sums[static_cast<size_t>(range.set)] += g[i] * g[i];
  for (int64_t s = 0; s < y.cols; ++s) y.put(s, std::sqrt(sums[static_cast<size_t>(s)]));
}

namespace {

// One group's row of hyper, with its own rate and decay, and the factor that clips its gradients.
template <class S>
struct GroupHyper {
  const S* hyper;
  Sum<S> rate, decay, clip_factor;

  GroupHyper(const StepArgs& args, const ParamGroup& group, int decay_at = 4, int clip_at = 5)
      : hyper(args.in[0].as<S>() + 8 * group.set), clip_factor(1) {
    const Sum<S> norm = args.in[1].as<S>()[group.set], clip = hyper[clip_at];
    if (real_part(clip) > 0 && real_part(norm) > real_part(clip)) clip_factor = clip / norm;
    rate = Sum<S>(hyper[0]) * Sum<S>(group.lr_scale);
    decay = Sum<S>(hyper[decay_at]) * Sum<S>(group.decay_scale);
  }
  Sum<S> operator[](int i) const { return hyper[i]; }
};

// f(group, hyper, i, clipped gradient) for each parameter, whose gradient is then 0. The last
// output is g.
template <class S, class F>
void each_param(const StepArgs& args, F&& f) {
  S* g = args.out[args.out.size() - 1].template as<S>();
  for (const ParamGroup& group : attr_of<ParamGroups>(args).groups) {
    const GroupHyper<S> h(args, group);
    for (int64_t i = group.begin; i < group.end; ++i) {
      f(h, i, h.clip_factor * Sum<S>(g[i]));
      g[i] = S(0);
    }
  }
}

template <class S>
Sum<S> root_mean_square(const std::vector<Sum<S>>& values) {
  Sum<S> sum = 0;
  for (Sum<S> x : values) sum += x * x;
  return std::sqrt(sum / Sum<S>(static_cast<double>(values.size())));
}

}  // namespace

template <class S>
void adamw_fwd(const StepArgs& args) {
  Out<S> params(args, 0), m(args, 1), v(args, 2);
  const Sum<S> one = 1;
  each_param<S>(args, [&](const GroupHyper<S>& h, int64_t i, Sum<S> g) {
    Sum<S> p = params.data[i];
    Sum<S> mi = h[1] * Sum<S>(m.data[i]) + (one - h[1]) * g;
    Sum<S> vi = h[2] * Sum<S>(v.data[i]) + (one - h[2]) * g * g;
    Sum<S> step = mi / h[6] / (std::sqrt(vi / h[7]) + h[3]);
    params.data[i] = static_cast<S>(p - h.rate * (step + h.decay * p));
    m.data[i] = static_cast<S>(mi);
    v.data[i] = static_cast<S>(vi);
  });
}

template <class S>
void sgd_fwd(const StepArgs& args) {
  Out<S> params(args, 0), m(args, 1);
  const Sum<S> one = 1;
  each_param<S>(args, [&](const GroupHyper<S>& h, int64_t i, Sum<S> g) {
    Sum<S> p = params.data[i], d = g + h.decay * p;
    Sum<S> mi = real_part(h[6]) == 0 ? d : h[1] * Sum<S>(m.data[i]) + (one - h[2]) * d;
    Sum<S> step = real_part(h[3]) != 0 ? d + h[1] * mi : mi;
    params.data[i] = static_cast<S>(p - h.rate * step);
    m.data[i] = static_cast<S>(mi);
  });
}

template <class S>
void lion_fwd(const StepArgs& args) {
  Out<S> params(args, 0), m(args, 1);
  const Sum<S> one = 1;
  each_param<S>(args, [&](const GroupHyper<S>& h, int64_t i, Sum<S> g) {
    Sum<S> p = params.data[i], mi = m.data[i];
    double mixed = real_part(h[1] * mi + (one - h[1]) * g);
    Sum<S> step = mixed > 0 ? 1.0 : mixed < 0 ? -1.0 : 0.0;
    params.data[i] = static_cast<S>(p - h.rate * (step + h.decay * p));
    m.data[i] = static_cast<S>(h[2] * mi + (one - h[2]) * g);
  });
}

namespace {

// u [rows, cols] to the nearest matrix with equal singular values, about.
template <class S>
void orthogonalise(std::vector<Sum<S>>& u, int64_t rows, int64_t cols, int steps) {
  const bool tall = rows > cols;
  const int64_t s = std::min(rows, cols), n = std::max(rows, cols);
  std::vector<Sum<S>> x(u.size()), next(u.size());
  Sum<S> sum = 0;
  for (Sum<S> value : u) sum += value * value;
  const Sum<S> by = std::sqrt(sum) + Sum<S>(kMuonEps);
  auto in_u = [&](int64_t i, int64_t j) {
    return static_cast<size_t>(tall ? j * cols + i : i * cols + j);
  };
  auto at = [](int64_t i, int64_t width, int64_t j) { return static_cast<size_t>(i * width + j); };
  for (int64_t i = 0; i < s; ++i)
    for (int64_t j = 0; j < n; ++j) x[at(i, n, j)] = u[in_u(i, j)] / by;
  std::vector<Sum<S>> a(static_cast<size_t>(s * s)), b(a.size());
  for (int step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < s; ++i)
      for (int64_t j = 0; j < s; ++j) {
        Sum<S> dot = 0;
        for (int64_t k = 0; k < n; ++k) dot += x[at(i, n, k)] * x[at(j, n, k)];
        a[at(i, s, j)] = dot;
      }
    for (int64_t i = 0; i < s; ++i)
      for (int64_t j = 0; j < s; ++j) {
        Sum<S> dot = 0;
        for (int64_t k = 0; k < s; ++k) dot += a[at(i, s, k)] * a[at(k, s, j)];
        b[at(i, s, j)] = Sum<S>(kMuonB) * a[at(i, s, j)] + Sum<S>(kMuonC) * dot;
      }
    for (int64_t i = 0; i < s; ++i)
      for (int64_t j = 0; j < n; ++j) {
        Sum<S> dot = Sum<S>(kMuonA) * x[at(i, n, j)];
        for (int64_t k = 0; k < s; ++k) dot += b[at(i, s, k)] * x[at(k, n, j)];
        next[at(i, n, j)] = dot;
      }
    std::swap(x, next);
  }
  for (int64_t i = 0; i < s; ++i)
    for (int64_t j = 0; j < n; ++j) u[in_u(i, j)] = x[at(i, n, j)];
}

}  // namespace

template <class S>
void muon_fwd(const StepArgs& args) {
  Out<S> params(args, 0), m(args, 1), g(args, 2);
  const Sum<S> one = 1;
  for (const ParamGroup& group : attr_of<ParamGroups>(args).groups) {
    const GroupHyper<S> h(args, group);
    std::vector<Sum<S>> u;
    for (int64_t i = group.begin; i < group.end; ++i) {
      const Sum<S> gi = h.clip_factor * Sum<S>(g.data[i]);
      const Sum<S> mi = h[1] * Sum<S>(m.data[i]) + (one - h[1]) * gi;
      u.push_back(real_part(h[2]) != 0 ? h[1] * mi + (one - h[1]) * gi : mi);
      m.data[i] = static_cast<S>(mi);
      g.data[i] = S(0);
    }
    Sum<S> rate = h.rate;
    if (group.rows > 0) {
      const int64_t cols = group_cols(group);
      orthogonalise<S>(u, group.rows, cols, static_cast<int>(real_part(h[3])));
      rate *= std::sqrt(std::max(1.0, static_cast<double>(group.rows) / static_cast<double>(cols)));
    }
    for (int64_t i = group.begin; i < group.end; ++i) {
      const Sum<S> p = params.data[i];
      params.data[i] =
          static_cast<S>(p - rate * u[static_cast<size_t>(i - group.begin)] - h.rate * h.decay * p);
    }
  }
}

template <class S>
void adafactor_fwd(const StepArgs& args) {
  Out<S> params(args, 0), factors(args, 1), g(args, 2);
  const Sum<S> one = 1;
  S* kept = factors.data;
  for (const ParamGroup& group : attr_of<ParamGroups>(args).groups) {
    const GroupHyper<S> h(args, group);
    const Sum<S> beta2 = h[1];
    const int64_t count = group.end - group.begin, cols = group_cols(group);
    std::vector<Sum<S>> u, p;
    for (int64_t i = group.begin; i < group.end; ++i) {
      u.push_back(h.clip_factor * Sum<S>(g.data[i]));
      p.push_back(params.data[i]);
      g.data[i] = S(0);
    }
    auto update = [&](S& state, Sum<S> now) {
      state = static_cast<S>(beta2 * Sum<S>(state) + (one - beta2) * now);
      return Sum<S>(state);
    };
    if (group.rows > 0) {
      std::vector<Sum<S>> row(static_cast<size_t>(group.rows)), column(static_cast<size_t>(cols));
      for (int64_t i = 0; i < count; ++i) {
        const Sum<S> square = u[static_cast<size_t>(i)] * u[static_cast<size_t>(i)] + h[2];
        row[static_cast<size_t>(i / cols)] += square / Sum<S>(static_cast<double>(cols));
        column[static_cast<size_t>(i % cols)] += square / Sum<S>(static_cast<double>(group.rows));
      }
      Sum<S> mean = 0;
      for (int64_t r = 0; r < group.rows; ++r) {
        row[static_cast<size_t>(r)] = update(kept[r], row[static_cast<size_t>(r)]);
        mean += row[static_cast<size_t>(r)] / Sum<S>(static_cast<double>(group.rows));
      }
      for (int64_t c = 0; c < cols; ++c)
        column[static_cast<size_t>(c)] =
            update(kept[group.rows + c], column[static_cast<size_t>(c)]);
      for (int64_t i = 0; i < count; ++i)
        u[static_cast<size_t>(i)] /= std::sqrt(row[static_cast<size_t>(i / cols)] / mean *
                                               column[static_cast<size_t>(i % cols)]);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        Sum<S>& ui = u[static_cast<size_t>(i)];
        ui /= std::sqrt(update(kept[i], ui * ui + h[2]));
      }
    }
    kept += factor_count(group);
    const Sum<S> over = root_mean_square<S>(u) / h[6];
    const Sum<S> shrink = real_part(over) > 1 ? one / over : one;
    Sum<S> rate = h.rate;
    if (real_part(h[7]) != 0) {
      const Sum<S> size = root_mean_square<S>(p);
      rate *= real_part(size) > real_part(h[3]) ? size : h[3];
    }
    for (int64_t i = 0; i < count; ++i) {
      const Sum<S> pi = p[static_cast<size_t>(i)];
      params.data[group.begin + i] =
          static_cast<S>(pi - rate * (shrink * u[static_cast<size_t>(i)] + h.decay * pi));
    }
  }
}

template <class S>
void adamw8_fwd(const StepArgs& args) {
  Out<S> params(args, 0), scales(args, 3), g(args, 4);
  auto* m_codes = args.out[1].as<uint8_t>();
  auto* v_codes = args.out[2].as<uint8_t>();
  const Sum<S> one = 1;
  int64_t block = 0;
  for (const ParamGroup& group : attr_of<ParamGroups>(args).groups) {
    const GroupHyper<S> h(args, group);
    for (int64_t first = group.begin; first < group.end; first += kCodeBlock, ++block) {
      const int64_t last = std::min(group.end, first + kCodeBlock);
      S &m_scale = scales.at(0, block), &v_scale = scales.at(1, block);
      Sum<S> m[kCodeBlock], v[kCodeBlock];
      double m_most = 0, v_most = 0;
      for (int64_t i = first; i < last; ++i) {
        const double mc = static_cast<int8_t>(m_codes[i]) / 127.0, vc = v_codes[i] / 255.0;
        const Sum<S> gi = h.clip_factor * Sum<S>(g.data[i]), p = params.data[i];
        Sum<S>&mi = m[i - first], &vi = v[i - first];
        mi = h[1] * Sum<S>(m_scale) * Sum<S>(mc < 0 ? -mc * mc : mc * mc) + (one - h[1]) * gi;
        vi = h[2] * Sum<S>(v_scale) * Sum<S>(vc * vc * vc * vc) + (one - h[2]) * gi * gi;
        const Sum<S> step = mi / h[6] / (std::sqrt(vi / h[7]) + h[3]);
        params.data[i] = static_cast<S>(p - h.rate * (step + h.decay * p));
        g.data[i] = S(0);
        m_most = std::max(m_most, std::abs(real_part(mi)));
        v_most = std::max(v_most, real_part(vi));
      }
      for (int64_t i = first; i < last; ++i) {
        const double mi = real_part(m[i - first]), vi = real_part(v[i - first]);
        const auto mc = m_most > 0 ? std::lround(127 * std::sqrt(std::abs(mi) / m_most)) : 0L;
        const auto vc = v_most > 0 ? std::lround(255 * std::sqrt(std::sqrt(vi / v_most))) : 0L;
        m_codes[i] = static_cast<uint8_t>(static_cast<int8_t>(mi < 0 ? -mc : mc));
        v_codes[i] = static_cast<uint8_t>(vi > 0 ? std::max(vc, 1L) : 0L);
      }
      m_scale = static_cast<S>(m_most);
      v_scale = static_cast<S>(v_most);
    }
  }
}

WICK_REF_KERNEL(grad_norm_fwd);
WICK_REF_KERNEL(adamw_fwd);
WICK_REF_KERNEL(sgd_fwd);
WICK_REF_KERNEL(lion_fwd);
WICK_REF_KERNEL(muon_fwd);
WICK_REF_KERNEL(adafactor_fwd);
WICK_REF_KERNEL(adamw8_fwd);

}  // namespace wick::ref
