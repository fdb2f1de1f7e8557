// SPDX-License-Identifier: Apache-2.0
// The optimizers that look at a whole matrix or block of parameters: muon, adafactor, adamw8. An
// adapter has hundreds of small groups, and each is one thread's work; a large matrix is shared out
// by rows. Either way every sum has one order, so that bits do not depend on the threads' number.
#include "backend/accepts.h"
#include "backend/cpu/optimizer.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer_matrix.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE float dot(const float* a, const float* b, int64_t n) {
  VF sum = hn::Zero(df);
  for (int64_t i = 0; i < n; i += kLanes)
    sum = hn::MulAdd(load_part(a + i, n - i), load_part(b + i, n - i), sum);
  return sum_lanes(sum);
}

// Runs f(i) for i in [0, n): on one thread, or on all of them.
struct Alone {
  template <typename F>
  void operator()(int64_t n, const F& f) const {
    for (int64_t i = 0; i < n; ++i) f(i);
  }
};
struct Shared {
  ThreadPool* pool;
  template <typename F>
  void operator()(int64_t n, const F& f) const {
    pool->parallel(n, f);
  }
};

// f(first, count) for stretches of [0, n), each a whole number of vectors.
template <typename Each, typename F>
void stretches(const Each& each, int64_t n, const F& f) {
  constexpr int64_t kStretch = 4096;
  each((n + kStretch - 1) / kStretch,
       [&](int64_t i) HWY_ATTR { f(i * kStretch, std::min(kStretch, n - i * kStretch)); });
}

// Numbers from which on a matrix is shared out.
constexpr int64_t kLarge = int64_t{1} << 18;

// muon. Groups are taken in waves whose matrices fit the scratch together.
constexpr int64_t kWaveFloats = int64_t{8} << 20;

int64_t muon_floats(const ParamGroup& g) {
  if (g.rows == 0) return 0;
  const int64_t s = std::min(g.rows, group_cols(g));
  return 2 * (g.end - g.begin) + 2 * s * s;
}

// The groups from `first` on that one wave takes, and their floats.
struct Wave {
  size_t end;
  int64_t floats;
};
Wave next_wave(const std::vector<ParamGroup>& groups, size_t first) {
  Wave wave{first, 0};
  while (wave.end < groups.size() &&
         (wave.end == first || wave.floats + muon_floats(groups[wave.end]) <= kWaveFloats))
    wave.floats += muon_floats(groups[wave.end++]);
  return wave;
}

size_t muon_scratch(const StepArgs& args, int) {
  const auto& groups = attr<ParamGroups>(*args.step).groups;
  int64_t most = 0;
  for (size_t first = 0; first < groups.size();) {
    const Wave wave = next_wave(groups, first);
    most = std::max(most, wave.floats);
    first = wave.end;
  }
  return static_cast<size_t>(most) * sizeof(float);
}

// x [s, n] with s <= n, already divided by its norm; `next` is as large, a and b are [s, s].
// Returns where the result is: x or next.
template <typename Each>
float* newton_schulz(const Each& each, float* x, float* next, float* a, float* b, int64_t s,
                     int64_t n, int steps) {
  for (int step = 0; step < steps; ++step) {
    each(s, [&](int64_t i) HWY_ATTR {
      for (int64_t j = 0; j <= i; ++j) a[i * s + j] = a[j * s + i] = dot(x + i * n, x + j * n, n);
    });
    each(s, [&](int64_t i) HWY_ATTR {
      for (int64_t j = 0; j < s; ++j)  // a is symmetric
        b[i * s + j] = kMuonB * a[i * s + j] + kMuonC * dot(a + i * s, a + j * s, s);
    });
    each(s, [&](int64_t i) HWY_ATTR {
      for (int64_t j = 0; j < n; j += kLanes) {
        VF sum = hn::Mul(set(kMuonA), load_part(x + i * n + j, n - j));
        for (int64_t k = 0; k < s; ++k)
          sum = hn::MulAdd(set(b[i * s + k]), load_part(x + k * n + j, n - j), sum);
        store_part(sum, next + i * n + j, n - j);
      }
    });
    std::swap(x, next);
  }
  return x;
}

template <typename Each>
void muon_group(const Each& each, const StepArgs& args, const ParamGroup& group, float* x) {
  const GroupHyper h(args, group);
  const int64_t count = group.end - group.begin, rows = group.rows, cols = group_cols(group);
  float *params = args.out[0].as<float>() + group.begin,
        *ms = args.out[1].as<float>() + group.begin, *gs = args.out[2].as<float>() + group.begin;
  const VF momentum = set(h[1]), taken = set(1.0f - h[1]);
  // The step takes the gradients' place until it is done.
  stretches(each, count, [&](int64_t first, int64_t length) HWY_ATTR {
    for (int64_t i = first; i < first + length; i += kLanes) {
      const int64_t n = count - i;
      const VF g = hn::Mul(load_part(gs + i, n), set(h.shrink));
      const VF m = hn::MulAdd(momentum, load_part(ms + i, n), hn::Mul(taken, g));
      store_part(m, ms + i, n);
      store_part(h[2] != 0 ? hn::MulAdd(momentum, m, hn::Mul(taken, g)) : m, gs + i, n);
    }
  });
  float rate = h.rate;
  if (rows > 0) {
    const bool tall = rows > cols;
    const int64_t s = std::min(rows, cols), n = std::max(rows, cols);
    float *next = x + count, *a = next + count, *b = a + s * s;
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r)
      sum += static_cast<double>(dot(gs + r * cols, gs + r * cols, cols));
    const float by = 1.0f / (static_cast<float>(std::sqrt(sum)) + kMuonEps);
    each(rows, [&](int64_t r) {
      for (int64_t c = 0; c < cols; ++c) x[tall ? c * n + r : r * n + c] = gs[r * cols + c] * by;
    });
    x = newton_schulz(each, x, next, a, b, s, n, static_cast<int>(h[3]));
    each(rows, [&](int64_t r) {
      for (int64_t c = 0; c < cols; ++c) gs[r * cols + c] = x[tall ? c * n + r : r * n + c];
    });
    if (tall) rate *= std::sqrt(static_cast<float>(rows) / static_cast<float>(cols));
  }
  const VF keep = set(1.0f - h.rate * h.decay);
  stretches(each, count, [&](int64_t first, int64_t length) HWY_ATTR {
    for (int64_t i = first; i < first + length; i += kLanes) {
      const int64_t n = count - i;
      const VF p = hn::Mul(load_part(params + i, n), keep);
      store_part(hn::NegMulAdd(set(rate), load_part(gs + i, n), p), params + i, n);
      store_part(hn::Zero(df), gs + i, n);
    }
  });
}

bool is_large(const ParamGroup& group) { return group.end - group.begin >= kLarge; }

void muon_fwd(const StepArgs& args) {
  const auto& groups = attr<ParamGroups>(*args.step).groups;
  for (size_t first = 0; first < groups.size();) {
    const Wave wave = next_wave(groups, first);
    auto place = [&](size_t mine) {
      float* x = static_cast<float*>(args.scratch);
      for (size_t before = first; before < mine; ++before) x += muon_floats(groups[before]);
      return x;
    };
    args.pool->parallel(static_cast<int64_t>(wave.end - first), [&](int64_t i) HWY_ATTR {
      const size_t mine = first + static_cast<size_t>(i);
      if (!is_large(groups[mine])) muon_group(Alone(), args, groups[mine], place(mine));
    });
    for (size_t mine = first; mine < wave.end; ++mine)
      if (is_large(groups[mine])) muon_group(Shared{args.pool}, args, groups[mine], place(mine));
    first = wave.end;
  }
}

// `sums` is of the group's rows, twice. Sums over rows are in f64 and in the order of the rows.
template <typename Each>
void adafactor_group(const Each& each, const StepArgs& args, const ParamGroup& group, float* kept,
                     double* sums) {
  const GroupHyper h(args, group);
  const int64_t count = group.end - group.begin;
  const int64_t rows = std::max<int64_t>(1, group.rows), cols = count / rows;
  float *params = args.out[0].as<float>() + group.begin,
        *gs = args.out[2].as<float>() + group.begin;
  const float beta2 = h[1], eps1 = h[2];
  const bool matrix = group.rows > 0;
  float* column = matrix ? kept + rows : kept;
  const float column_share = (1.0f - beta2) / static_cast<float>(matrix ? rows : 1);
  each(rows, [&](int64_t r) HWY_ATTR {
    float* g = gs + r * cols;
    VF sum = hn::Zero(df);
    for (int64_t c = 0; c < cols; c += kLanes) {
      const VF gi = hn::Mul(load_part(g + c, cols - c), set(h.shrink));
      store_part(gi, g + c, cols - c);
      sum = hn::Add(sum, hn::Mul(gi, gi));
    }
    if (!matrix) return;
    const float mean = sum_lanes(sum) / static_cast<float>(cols) + eps1;
    kept[r] = beta2 * kept[r] + (1.0f - beta2) * mean;
  });
  // A stretch of columns, all rows of it.
  constexpr int64_t kColumns = 256;
  each((cols + kColumns - 1) / kColumns, [&](int64_t part) HWY_ATTR {
    const int64_t first = part * kColumns, end = std::min(cols, first + kColumns);
    for (int64_t c = first; c < end; c += kLanes)
      store_part(hn::Mul(set(beta2), load_part(column + c, cols - c)), column + c, cols - c);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = first; c < end; c += kLanes) {
        const int64_t n = cols - c;
        const VF gi = load_part(gs + r * cols + c, n);
        const VF with_eps = hn::Add(hn::Mul(gi, gi), set(eps1));
        store_part(hn::MulAdd(set(column_share), with_eps, load_part(column + c, n)), column + c,
                   n);
      }
  });
  double row_mean = 0;
  for (int64_t r = 0; matrix && r < rows; ++r) row_mean += static_cast<double>(kept[r]);
  const auto mean = static_cast<float>(row_mean / static_cast<double>(rows));
  each(rows, [&](int64_t r) HWY_ATTR {
    float* g = gs + r * cols;
    const VF row = set(matrix ? kept[r] / mean : 1.0f);
    VF sum = hn::Zero(df), size = hn::Zero(df);
    for (int64_t c = 0; c < cols; c += kLanes) {
      const int64_t n = cols - c;
      // Lanes beyond the end are 0 / sqrt(1).
      const VF under = hn::Mul(row, load_part(column + c, n));
      const VF root = hn::IfThenElse(hn::Gt(under, hn::Zero(df)), hn::Sqrt(under), set(1.0f));
      const VF u = hn::Div(load_part(g + c, n), root);
      store_part(u, g + c, n);
      sum = hn::MulAdd(u, u, sum);
      const VF p = load_part(params + r * cols + c, n);
      size = hn::MulAdd(p, p, size);
    }
    sums[2 * r] = static_cast<double>(sum_lanes(sum));
    sums[2 * r + 1] = static_cast<double>(sum_lanes(size));
  });
  double squares = 0, sizes = 0;
  for (int64_t r = 0; r < rows; ++r) {
    squares += sums[2 * r];
    sizes += sums[2 * r + 1];
  }
  const auto total = static_cast<double>(count);
  const float over = static_cast<float>(std::sqrt(squares / total)) / h[6];
  const float shrink = over > 1 ? 1.0f / over : 1.0f;
  float rate = h.rate;
  if (h[7] != 0) rate *= std::max(h[3], static_cast<float>(std::sqrt(sizes / total)));
  stretches(each, count, [&](int64_t first, int64_t length) HWY_ATTR {
    for (int64_t i = first; i < first + length; i += kLanes) {
      const int64_t n = count - i;
      const VF p = load_part(params + i, n);
      const VF step = hn::MulAdd(set(h.decay), p, hn::Mul(set(shrink), load_part(gs + i, n)));
      store_part(hn::NegMulAdd(set(rate), step, p), params + i, n);
      store_part(hn::Zero(df), gs + i, n);
    }
  });
}

int64_t adafactor_sums(const ParamGroup& group) { return 2 * std::max<int64_t>(1, group.rows); }

size_t adafactor_scratch(const StepArgs& args, int) {
  int64_t sums = 0;
  for (const ParamGroup& group : attr<ParamGroups>(*args.step).groups)
    sums += adafactor_sums(group);
  return static_cast<size_t>(sums) * sizeof(double);
}

void adafactor_fwd(const StepArgs& args) {
  const auto& groups = attr<ParamGroups>(*args.step).groups;
  auto run = [&](const auto& each, size_t mine) HWY_ATTR {
    float* kept = args.out[1].as<float>();
    auto* sums = static_cast<double*>(args.scratch);
    for (size_t before = 0; before < mine; ++before) {
      kept += factor_count(groups[before]);
      sums += adafactor_sums(groups[before]);
    }
    adafactor_group(each, args, groups[mine], kept, sums);
  };
  args.pool->parallel(static_cast<int64_t>(groups.size()), [&](int64_t i) HWY_ATTR {
    if (!is_large(groups[static_cast<size_t>(i)])) run(Alone(), static_cast<size_t>(i));
  });
  for (size_t i = 0; i < groups.size(); ++i)
    if (is_large(groups[i])) run(Shared{args.pool}, i);
}

// One block of codes of a group, at `first` of the parameters.
void adamw8_block(const StepArgs& args, const GroupHyper& h, int64_t first, int64_t count,
                  int64_t block) {
  float *params = args.out[0].as<float>() + first, *gs = args.out[4].as<float>() + first;
  auto* m_codes = args.out[1].as<int8_t>() + first;
  auto* v_codes = args.out[2].as<uint8_t>() + first;
  float& m_scale = args.out[3].as<float>()[block];
  float& v_scale = args.out[3].as<float>()[args.out[3].ld + block];
  alignas(64) float m[kCodeBlock] = {}, v[kCodeBlock] = {};
  for (int64_t i = 0; i < count; ++i) {
    const float mc = static_cast<float>(m_codes[i]) * (1.0f / 127.0f);
    const float vc = static_cast<float>(v_codes[i]) * (1.0f / 255.0f);
    m[i] = m_scale * (mc < 0 ? -mc * mc : mc * mc);
    v[i] = v_scale * ((vc * vc) * (vc * vc));
  }
  VF m_most = hn::Zero(df), v_most = hn::Zero(df);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i;
    const VF g = hn::Mul(load_part(gs + i, n), set(h.shrink)), p = load_part(params + i, n);
    const VF mi = hn::MulAdd(set(h[1]), load(m + i), hn::Mul(set(1.0f - h[1]), g));
    const VF vi = hn::MulAdd(set(h[2]), load(v + i), hn::Mul(set(1.0f - h[2]), hn::Mul(g, g)));
    const VF down = hn::MulAdd(hn::Sqrt(vi), set(1.0f / std::sqrt(h[7])), set(h[3]));
    const VF step = hn::Div(hn::Mul(set(h.rate / h[6]), mi), down);
    store_part(hn::Sub(hn::Mul(p, set(1.0f - h.rate * h.decay)), step), params + i, n);
    store_part(hn::Zero(df), gs + i, n);
    store(mi, m + i);
    store(vi, v + i);
    m_most = hn::Max(m_most, hn::Abs(mi));
    v_most = hn::Max(v_most, vi);
  }
  m_scale = max_lanes(m_most);
  v_scale = max_lanes(v_most);
  const VF m_down = set(m_scale > 0 ? m_scale : 1.0f), v_down = set(v_scale > 0 ? v_scale : 1.0f);
  alignas(64) float mc[kCodeBlock], vc[kCodeBlock];
  for (int64_t i = 0; i < count; i += kLanes) {
    const VF share = hn::Div(load(v + i), v_down);
    store(hn::Mul(set(127.0f), hn::Sqrt(hn::Div(hn::Abs(load(m + i)), m_down))), mc + i);
    store(hn::Mul(set(255.0f), hn::Sqrt(hn::Sqrt(share))), vc + i);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int mi = static_cast<int>(mc[i] + 0.5f), vi = static_cast<int>(vc[i] + 0.5f);
    m_codes[i] = static_cast<int8_t>(m[i] < 0 ? -mi : mi);
    v_codes[i] = static_cast<uint8_t>(v[i] > 0 && vi == 0 ? 1 : vi);
  }
}

void adamw8_fwd(const StepArgs& args) {
  int64_t block = 0;
  for (const ParamGroup& group : attr<ParamGroups>(*args.step).groups) {
    const GroupHyper h(args, group);
    const int64_t blocks = code_blocks(group);
    constexpr int64_t kAtOnce = 16;
    args.pool->parallel((blocks + kAtOnce - 1) / kAtOnce, [&](int64_t task) HWY_ATTR {
      const int64_t end = std::min(blocks, (task + 1) * kAtOnce);
      for (int64_t b = task * kAtOnce; b < end; ++b) {
        const int64_t first = group.begin + b * kCodeBlock;
        adamw8_block(args, h, first, std::min(kCodeBlock, group.end - first), block + b);
      }
    });
    block += blocks;
  }
}

bool takes_codes(const StepArgs& args) {
  return is_f32(args.in[0]) && is_f32(args.in[1]) && is_f32(args.out[0]) &&
         args.out[1].dtype == DType::kU8 && args.out[2].dtype == DType::kU8 &&
         is_f32(args.out[3]) && is_f32(args.out[4]);
}

}  // namespace

Candidates matrix_optimizer_table() {
  static constexpr Candidate kTable[] = {
      {Op::kMuon, Dir::kForward, "muon_fwd", muon_fwd, nullptr, muon_scratch},
      {Op::kAdafactor, Dir::kForward, "adafactor_fwd", adafactor_fwd, nullptr, adafactor_scratch},
      {Op::kAdamw8, Dir::kForward, "adamw8_fwd", adamw8_fwd, takes_codes, nullptr},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {

WICK_CPU_BY_RUNG(matrix_optimizer_candidates, matrix_optimizer_table)

}  // namespace wick::cpu
#endif
