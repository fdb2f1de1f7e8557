// SPDX-License-Identifier: Apache-2.0
// A case is recorded as a small network: its differentiable inputs are ranges of one flat state,
// its output goes through head and segment_sum (random weights) to a scalar. backward() on
// ref<double> must give what complex step gives on ref<complex<double>>: the imaginary part of
// the loss at params + i h e_j, divided by h, which has no cancellation at any h.
#include <cmath>
#include <complex>
#include <cstdio>

#include "backend/ref/ref.h"
#include "base/check.h"
#include "base/rng.h"
#include "ops/modes.h"
#include "ops/tolerance.h"
#include "plan/head_pair.h"
#include "plan/recorder.h"

namespace wick::ops {
namespace {

using Complex = std::complex<double>;
constexpr double kStep = 1e-30;
constexpr int64_t kClasses = 3;  // of the head that reads the output

struct Network {
  Plan plan;
  ValueId params = kNone, grads = kNone, loss = kNone;
  std::vector<std::pair<ValueId, const Arg*>> feeds;
  std::vector<std::pair<const Arg*, int64_t>> offsets;  // of the differentiable inputs
};

// What the runner itself feeds: classes and weights of the loss.
struct LossFeeds {
  Arg classes, weight, segment, projection;
};

LossFeeds loss_feeds(int64_t rows, int64_t cols) {
  Rng rng(99);
  LossFeeds f;
  f.classes = {.name = "classes", .shape = {rows}, .dtype = DType::kI32};
  f.segment = {.name = "loss_segment", .shape = {rows}, .dtype = DType::kI32};
  f.weight = {.name = "loss_weight", .shape = {rows}};
  f.projection = {.name = "projection", .shape = {kClasses, cols}};
  for (int64_t m = 0; m < rows; ++m) {
    f.classes.ints.push_back(static_cast<int32_t>(rng.below(kClasses)));
    f.segment.ints.push_back(0);
    f.weight.data.push_back(rounded(rng.normal(), DType::kF32));
  }
  for (int64_t i = 0; i < kClasses * cols; ++i) {
    f.projection.data.push_back(rounded(rng.normal(), DType::kF32));
  }
  return f;
}

class NetworkMaker {
 public:
  NetworkMaker(const Case& c, Network& n) : c_(c), n_(n), r_(n.plan, true) {
    int64_t count = 0;
    for (const std::string& name : c.fwd_in) {
      if (name.empty() || !c.arg(name).differentiable) continue;
      n.offsets.emplace_back(&c.arg(name), count);
      count += c.arg(name).shape.elements();
    }
    n.params = r_.state("params", {count}, DType::kF32);
    n.grads = r_.state("grads", {count}, DType::kF32);
  }

  void forward(const LossFeeds*& loss_feeds_made) {
    ValueId y = record();
    if (r_.shape(y).rank() == 2) {
      made_ = loss_feeds(r_.shape(y)[0], r_.shape(y)[1]);
      y = r_.head(y, feed(made_.projection), feed(made_.classes));
    } else {
      made_ = loss_feeds(r_.shape(y)[0], 1);
    }
    n_.loss = r_.segment_sum(y, feed(made_.weight), feed(made_.segment), 1);
    loss_feeds_made = &made_;
  }
  void reverse() { backward(r_, n_.loss, n_.params, n_.grads); }

 private:
  ValueId feed(const Arg& arg) {
    ValueId id = r_.feed(arg.name, arg.shape, arg.dtype);
    n_.feeds.emplace_back(id, &arg);
    return id;
  }
  ValueId in(size_t i) {
    if (c_.fwd_in[i].empty()) return kNone;
    const Arg& arg = c_.arg(c_.fwd_in[i]);
    for (auto [differentiable, offset] : n_.offsets) {
      if (differentiable == &arg) return r_.flat(n_.params, offset, arg.shape, arg.name);
    }
    return feed(arg);
  }

  ValueId record() {
    switch (c_.op) {
      case Op::kEmbed:
        return r_.embed(in(0), in(1));
      case Op::kLinear: {
        ValueId x = in(0), w = in(1);
        ValueId y = r_.linear(x, w, in(2), std::get<LinearAttr>(c_.attr).scale);
        auto mode = c_.keys.find("mode");
        if (mode != c_.keys.end()) r_.linear_into(y, x, w, 0.7f);
        return y;
      }
      case Op::kRmsNorm:
        return r_.rms_norm(in(0), in(1), std::get<NormAttr>(c_.attr).eps);
      case Op::kAddRmsNorm: {
        auto both = r_.add_rms_norm(in(0), in(1), in(2), std::get<NormAttr>(c_.attr).eps);
        return c_.size("dsum_given", 1) != 0 ? r_.add(both.sum, both.normed) : both.normed;
      }
      case Op::kLayerNorm:
        return r_.layer_norm(in(0), in(1), in(2), std::get<NormAttr>(c_.attr).eps);
      case Op::kSoftmax:
        return r_.softmax(in(0));
      case Op::kRope:
        return r_.rope(in(0), in(1), in(2), std::get<RopeAttr>(c_.attr).head_dim);
      case Op::kAttention:
        return r_.attention(in(0), in(1), in(2), in(3), in(4), std::get<AttentionAttr>(c_.attr));
      case Op::kGatedAct:
        return r_.gated_act(in(0), std::get<GatedActAttr>(c_.attr).act);
      case Op::kAdd:
        return r_.add(in(0), in(1));
      case Op::kScale:
        return r_.scale(in(0), std::get<ScaleAttr>(c_.attr).factor);
      case Op::kBias:
        return r_.bias(in(0), in(1));
      case Op::kDropout: {
        const auto& attr = std::get<DropoutAttr>(c_.attr);
        return r_.dropout(in(0), in(1), attr.p, attr.site);
      }
      case Op::kGatherRows:
        return r_.gather_rows(in(0), in(1));
      case Op::kHead:
        return c_.size("R", 0) > 0 ? head_with_pair(r_, in(0), in(1), in(2), {}, in(3), in(4))
                                   : r_.head(in(0), in(1), in(2));
      case Op::kSegmentSum:
        return r_.segment_sum(in(0), in(1), in(2), c_.size("S"));
      case Op::kPreferenceLoss:
        return r_.preference_loss(in(0), in(1), in(2), std::get<PreferenceAttr>(c_.attr)).loss;
      case Op::kKlHead: {
        if (c_.size("R", 0) == 0)
          return r_.kl_head(in(0), in(1), in(2), in(3), in(4), std::get<KlAttr>(c_.attr));
        ValueId kl = r_.temp("kl", {c_.size("M")}, DType::kF32);
        kl_head_into(r_, kl, {in(0), in(1), in(2), in(3), in(4), in(5), in(6)},
                     std::get<KlAttr>(c_.attr));
        return kl;
      }
      case Op::kColumnScale:
        return r_.column_scale(in(0), in(1), in(2));
      case Op::kColumnNorm:
      case Op::kGradNorm:
      case Op::kAdamw:
      case Op::kSgd:
      case Op::kLion:
      case Op::kMuon:
      case Op::kAdafactor:
      case Op::kAdamw8:
      case Op::kSample:
      case Op::kCopy:
        break;
    }
    fail(ErrorCode::kInternal, op_name(c_.op), " is outside differentiation");
  }

  const Case& c_;
  Network& n_;
  Recorder r_;
  LossFeeds made_;
};

// A program over a network with its feeds and parameters in place.
template <class S>
class Runner {
 public:
  explicit Runner(const Network& n) : n_(n) {
    Bindings bindings(n.plan.values.size());
    int64_t count = n.plan.value(n.params).shape[0];
    params_ = bindings[static_cast<size_t>(n.params)] = backend_.allocate(DType::kF32, count);
    grads_ = bindings[static_cast<size_t>(n.grads)] = backend_.allocate(DType::kF32, count);
    program_ = backend_.compile(n.plan, bindings);
    for (auto [arg, offset] : n.offsets) {
      std::copy(arg->data.begin(), arg->data.end(), params() + offset);
    }
    for (auto [id, arg] : n.feeds) {
      std::vector<float> floats(arg->data.begin(), arg->data.end());
      bool is_int = arg->dtype == DType::kI32;
      const void* data = is_int ? static_cast<const void*>(arg->ints.data()) : floats.data();
      program_->feed(id, data, 4 * (is_int ? arg->ints.size() : floats.size()));
    }
  }
  S* params() { return RefBackend<S>::elements(*params_); }
  S* grads() { return RefBackend<S>::elements(*grads_); }
  S loss() {
    program_->run();
    program_->wait();
    return *RefBackend<S>::elements(*program_, n_.loss);
  }

 private:
  const Network& n_;
  RefBackend<S> backend_;
  BufferPtr params_, grads_;
  std::unique_ptr<Program> program_;
};

// The largest error of the case's gradients, relative to the largest derivative of the operand.
double gradient_error(const Case& c) {
  Network forward, both;
  const LossFeeds* feeds = nullptr;
  NetworkMaker forward_maker(c, forward), both_maker(c, both);
  forward_maker.forward(feeds);
  forward.plan.results.push_back(forward.loss);
  both_maker.forward(feeds);
  both_maker.reverse();
  check(both.plan);

  Runner<double> reversed(both);
  reversed.loss();
  Runner<Complex> stepped(forward);
  double worst = 0;
  for (auto [arg, offset] : both.offsets) {
    double largest = 0, error = 0;
    for (int64_t i = offset; i < offset + arg->shape.elements(); ++i) {
      Complex& p = stepped.params()[i];
      Complex before = p;
      p += Complex(0, kStep);
      double derivative = stepped.loss().imag() / kStep;
      p = before;
      largest = std::max(largest, std::abs(derivative));
      error = std::max(error, std::abs(derivative - reversed.grads()[i]));
      if (std::isnan(derivative) || std::isnan(reversed.grads()[i])) error = INFINITY;
    }
    if (largest == 0) fail(ErrorCode::kInternal, "the loss does not depend on ", arg->name);
    worst = std::max(worst, error / largest);
  }
  return worst;
}

}  // namespace

int check_gradients(const std::vector<Case>& cases) {
  int failures = 0, passed = 0;
  double worst = 0;
  std::vector<int> per_op(kOpCount, 0);
  for (const Case& c : cases) {
    if (!c.flag("grad")) continue;
    ++per_op[static_cast<size_t>(c.op)];
    double error = gradient_error(c);
    worst = std::max(worst, error);
    bool good = error <= kGradTolerance;
    ++(good ? passed : failures);
    if (!good) {
      std::printf("FAIL %s %s: relative error %.2e\n", op_name(c.op), c.text.c_str(), error);
    }
  }
  for (const Case& c : cases) {
    auto op = static_cast<size_t>(c.op);
    if (!op_is_differentiable(c.op) || per_op[op] != 0) continue;
    std::printf("FAIL %s has no case with grad=1\n", op_name(c.op));
    per_op[op] = 1;
    ++failures;
  }
  std::printf("grad: %d passed, %d failed, largest relative error %.2e\n", passed, failures, worst);
  return failures;
}

}  // namespace wick::ops
