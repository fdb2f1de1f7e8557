// SPDX-License-Identifier: Apache-2.0
#include "plan/random_plan.h"

#include <cmath>

namespace wick {
namespace {

constexpr int64_t kRows = 5, kHeadDim = 4, kVocab = 6, kPositions = 8;
constexpr float kEps = 1e-5f;

class Maker {
 public:
  Maker(RandomPlan& made, const RandomPlanOptions& options)
      : m_(made), options_(options), rng_(options.seed), r_(made.plan, true, options.activations) {}

  void make() {
    // The flat states come first so that ids do not depend on how much is used of them.
    m_.params = r_.state("params", {kMaxParams}, DType::kF32);
    m_.grads = r_.state("grads", {kMaxParams}, DType::kF32);
    positions_ = ints("positions", {kRows}, [&](int64_t i) { return i; });
    begin_ = ints("begin", {kRows}, [&](int64_t i) { return i < 3 ? 0 : 3; });
    end_ = ints("end", {kRows}, [&](int64_t i) { return i + 1; });
    keys_ =
        ints("keys", {kRows, 2}, [&](int64_t) { return static_cast<int32_t>(rng_.next_u32()); });
    angles_ = floats("angles", {kPositions, kHeadDim});
    ValueId ids = ints("ids", {kRows}, [&](int64_t) { return below(kVocab); });
    pool_.push_back(r_.embed(matrix(kVocab, 8, true), ids));

    int64_t blocks = 1 + below(3);
    for (int64_t b = 0; b < blocks; ++b) {
      bool marked = below(4) != 0, again = below(3) != 0;
      if (marked) r_.begin_block(options_.recompute && again);
      for (int64_t i = 0, n = 2 + below(4); i < n; ++i) pool_.push_back(next());
      if (marked) r_.end_block();
    }
    finish();
    m_.used = used_;
    if (options_.fuse) m_.fused = fuse_linear_bias(m_.plan) + fuse_add_rms_norm(m_.plan);
    if (options_.reverse) {
      backward(r_, m_.loss, m_.params, m_.grads);
    } else {
      m_.plan.results.push_back(m_.loss);
    }
  }

 private:
  static constexpr int64_t kMaxParams = 1200;

  int64_t below(int64_t n) { return static_cast<int64_t>(rng_.below(static_cast<uint64_t>(n))); }
  template <typename F>
  ValueId ints(const char* name, Shape shape, F&& f) {
    RandomPlan::Feed feed{r_.feed(name, shape, DType::kI32), {}, {}};
    for (int64_t i = 0; i < shape.elements(); ++i) feed.ints.push_back(static_cast<int32_t>(f(i)));
    m_.feeds.push_back(feed);
    return feed.id;
  }
  ValueId floats(const char* name, Shape shape) {
    RandomPlan::Feed feed{r_.feed(name, shape, DType::kF32), {}, {}};
    for (int64_t i = 0; i < shape.elements(); ++i) feed.floats.push_back(rng_.normal());
    m_.feeds.push_back(feed);
    return feed.id;
  }
  // A trained or a frozen operand. `must_train` where the loss would else not depend on params.
  ValueId operand(Shape shape, bool must_train = false) {
    bool trained = below(3) != 0 || must_train;
    if (trained && used_ + shape.elements() <= kMaxParams) {
      ValueId v = r_.flat(m_.params, used_, shape, cat("p", used_));
      used_ += shape.elements();
      return v;
    }
    m_.weights.push_back(
        r_.weight(cat("w", m_.weights.size()), shape, below(2) != 0 ? DType::kF32 : DType::kBF16));
    return m_.weights.back();
  }
  ValueId matrix(int64_t rows, int64_t cols, bool must_train = false) {
    return operand({rows, cols}, must_train);
  }

  ValueId any() { return pool_[static_cast<size_t>(below(static_cast<int64_t>(pool_.size())))]; }
  // Later values more often, so that networks get deep.
  ValueId recent() { return below(2) != 0 ? pool_.back() : any(); }
  int64_t width(ValueId v) const { return r_.shape(v)[1]; }
  ValueId project(ValueId x, int64_t cols) { return r_.linear(x, matrix(cols, width(x))); }
  ValueId with_width(ValueId x, int64_t cols) { return width(x) == cols ? x : project(x, cols); }

  ValueId next() {
    ValueId x = recent();
    switch (below(11)) {
      case 0:
        return r_.linear(x, matrix(4 + below(7), width(x)), kNone, 0.7f);
      case 1: {
        int64_t n = 3 + below(6);
        ValueId w = matrix(n, width(x));
        return r_.bias(r_.linear(x, w), operand({n}));
      }
      case 2:
        return low_rank(x);
      case 3:
        if (below(3) != 0) return r_.rms_norm(x, operand({width(x)}), kEps);
        if (below(2) != 0) return r_.softmax(x);
        {
          ValueId w = operand({width(x)}), b = operand({width(x)});
          return r_.layer_norm(x, w, b, kEps);
        }
      case 4: {
        ValueId wide = with_width(x, 8);
        return r_.rms_norm(wide, operand({4}), kEps);
      }
      case 5: {
        ValueId sum = r_.add(x, with_width(any(), width(x)));
        pool_.push_back(sum);
        return r_.rms_norm(sum, operand({width(sum)}), kEps);
      }
      case 6:
        return self_attention(x);
      case 7:
        return r_.gated_act(project(x, 2 * (2 + below(4))),
                            below(2) != 0 ? Act::kSilu : Act::kGeluTanh);
      case 8:
        return r_.scale(r_.add(x, x), 0.5f + rng_.uniform());
      case 9:
        return r_.dropout(x, keys_, 0.3f, static_cast<uint64_t>(below(5)));
      default: {
        ValueId other = with_width(any(), width(x));
        return r_.add(x, other);
      }
    }
  }

  // A product with another accumulated into it, whole or into a column range.
  ValueId low_rank(ValueId x) {
    int64_t n = 4 + below(4), rank = 1 + below(3);
    ValueId a = r_.linear(x, matrix(rank, width(x), true));
    ValueId y = r_.linear(x, matrix(n, width(x)));
    if (below(2) != 0) {
      r_.linear_into(y, a, matrix(n, rank, true), 1.5f);
    } else {
      int64_t at = 1 + below(n - 2);
      r_.linear_into(r_.cols(y, 0, at), a, matrix(at, rank, true), 1.5f);
      r_.linear_into(r_.cols(y, at, n), a, matrix(n - at, rank, true), 0.5f);
    }
    return y;
  }

  // q, k, v as column ranges of one product.
  ValueId self_attention(ValueId x) {
    int64_t kv_heads = 1 + below(2), heads = kv_heads * (1 + below(2));
    int64_t q_end = heads * kHeadDim, k_end = q_end + kv_heads * kHeadDim;
    int64_t v_end = k_end + kv_heads * kHeadDim;
    ValueId qkv = project(x, v_end);
    ValueId q = r_.cols(qkv, 0, q_end), k = r_.cols(qkv, q_end, k_end);
    if (below(2) != 0) {
      q = r_.rope(q, angles_, positions_, kHeadDim);
      k = r_.rope(k, angles_, positions_, kHeadDim);
    }
    AttentionAttr attr{.heads = heads,
                       .kv_heads = kv_heads,
                       .head_dim = kHeadDim,
                       .scale = 0.5f,
                       .window = below(2) != 0 ? 2 : 0,
                       .causal_self = true};
    return r_.attention(q, k, r_.cols(qkv, k_end, v_end), begin_, end_, attr);
  }

  void finish() {
    ValueId x = pool_.back();
    if (below(2) != 0) {
      ValueId rows = ints("rows", {4}, [&](int64_t i) { return i == 2 ? -1 : (i * 2) % kRows; });
      x = r_.gather_rows(x, rows);
    }
    int64_t count = r_.shape(x)[0];
    ValueId targets = ints("targets", {count}, [&](int64_t i) { return i == 1 ? -1 : below(4); });
    ValueId weight = floats("weight", {count});
    ValueId segment = ints("segment", {count}, [](int64_t) { return 0; });
    m_.loss = r_.segment_sum(r_.head(x, matrix(4, width(x), true), targets), weight, segment, 1);
  }

  RandomPlan& m_;
  const RandomPlanOptions& options_;
  Rng rng_;
  Recorder r_;
  std::vector<ValueId> pool_;
  ValueId positions_ = kNone, begin_ = kNone, end_ = kNone, keys_ = kNone, angles_ = kNone;
  int64_t used_ = 0;
};

}  // namespace

RandomPlan make_random_plan(const RandomPlanOptions& options) {
  RandomPlan made;
  Maker(made, options).make();
  return made;
}

}  // namespace wick
