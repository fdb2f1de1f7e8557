// SPDX-License-Identifier: Apache-2.0
#include "plan/random_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>

#include "backend/cpu/cpu.h"
#include "backend/ref/ref.h"
#include "base/half.h"

namespace wick {
namespace {

using Complex = std::complex<double>;
constexpr uint64_t kPlans = 300;

// What is in a weight or state: a pure function of `key`, exact in the value's dtype.
std::vector<float> contents(const Value& v, uint64_t key, float scale) {
  Rng rng(key);
  std::vector<float> data;
  for (int64_t i = 0; i < v.shape.elements(); ++i) {
    float x = scale * rng.normal();
    data.push_back(v.dtype == DType::kBF16 ? to_float(to_bf16(x)) : x);
  }
  return data;
}

void feed_all(Program& program, const RandomPlan& made) {
  for (const RandomPlan::Feed& feed : made.feeds) {
    if (feed.ints.empty()) {
      program.feed(feed.id, feed.floats.data(), 4 * feed.floats.size());
    } else {
      program.feed(feed.id, feed.ints.data(), 4 * feed.ints.size());
    }
  }
}

// A random plan on ref<S>.
template <class S>
class RefRun {
 public:
  explicit RefRun(const RandomPlan& made) : made_(made) {
    const Plan& plan = made.plan;
    Bindings bindings(plan.values.size());
    auto bind = [&](ValueId id, uint64_t key, float scale) {
      const Value& v = plan.value(id);
      BufferPtr buffer = backend_.allocate(v.dtype, v.shape.elements());
      std::vector<float> data = contents(v, key, scale);
      std::copy(data.begin(), data.end(), RefBackend<S>::elements(*buffer));
      return bindings[static_cast<size_t>(id)] = buffer;
    };
    params_ = bind(made.params, 1, 0.7f);
    grads_ = bind(made.grads, 2, 0.0f);
    for (size_t i = 0; i < made.weights.size(); ++i) bind(made.weights[i], 3 + i, 0.7f);
    program_ = backend_.compile(plan, bindings);
    feed_all(*program_, made);
  }

  S loss() {
    program_->run();
    program_->wait();
    return *RefBackend<S>::elements(*program_, made_.loss);
  }
  std::vector<S> grads() {
    S* g = RefBackend<S>::elements(*grads_);
    return {g, g + count()};
  }
  S* params() { return RefBackend<S>::elements(*params_); }
  int64_t count() const { return made_.plan.value(made_.params).shape[0]; }

 private:
  const RandomPlan& made_;
  RefBackend<S> backend_;
  BufferPtr params_, grads_;
  std::unique_ptr<Program> program_;
};

double largest(const std::vector<double>& xs) {
  double most = 0;
  for (double x : xs) most = std::max(most, std::abs(x));
  return most;
}

// Every combination of rewrites and recompute that a seed has.
std::vector<RandomPlan> variants(uint64_t seed) {
  std::vector<RandomPlan> all;
  for (bool fuse : {false, true}) {
    for (bool recompute : {false, true}) {
      all.push_back(make_random_plan({.seed = seed, .fuse = fuse, .recompute = recompute}));
    }
  }
  return all;
}

TEST(RandomPlan, AreLegalAndNothingAliveOverlaps) {
  RefBackend<double> backend;
  for (uint64_t seed = 0; seed < kPlans; ++seed) {
    for (const RandomPlan& made : variants(seed)) {
      SCOPED_TRACE(seed);
      ASSERT_NO_THROW(check(made.plan)) << print(made.plan);
      // Scratch of odd sizes, so that placement has more to do than ref asks for.
      std::vector<size_t> scratch;
      for (size_t i = 0; i < made.plan.steps.size(); ++i) scratch.push_back(i % 3 * (100 + i));
      Placement placement = place(made.plan, backend.element_sizes(), scratch);
      ASSERT_NO_THROW(check_placement(made.plan, backend.element_sizes(), scratch, placement));
      int64_t sum = 0;
      for (const Value& v : made.plan.values) {
        if (v.kind == Kind::kTemp) sum += (v.shape.elements() * 8 + 63) / 64 * 64;
      }
      EXPECT_LE(place(made.plan, backend.element_sizes(), {}).arena_bytes, sum);
      EXPECT_EQ(forecast_memory(made.plan, backend).arena,
                static_cast<int64_t>(
                    backend
                        .compile(made.plan,
                                 [&] {
                                   Bindings bindings(made.plan.values.size());
                                   for (size_t id = 0; id < bindings.size(); ++id) {
                                     const Value& v = made.plan.values[id];
                                     if (v.kind == Kind::kWeight || v.kind == Kind::kState) {
                                       bindings[id] = backend.allocate(v.dtype, v.shape.elements());
                                     }
                                   }
                                   return bindings;
                                 }())
                        ->arena_bytes()));
    }
  }
}

TEST(RandomPlan, FusedEqualsUnfused) {
  int applied = 0;
  for (uint64_t seed = 0; seed < kPlans; ++seed) {
    SCOPED_TRACE(seed);
    RandomPlan plain = make_random_plan({.seed = seed});
    RandomPlan fused = make_random_plan({.seed = seed, .fuse = true});
    applied += fused.fused;
    RefRun<double> a(plain), b(fused);
    double loss = a.loss();
    EXPECT_NEAR(loss, b.loss(), 1e-12 * std::abs(loss));
    std::vector<double> ga = a.grads(), gb = b.grads();
    double scale = largest(ga);
    EXPECT_GT(scale, 0);
    for (size_t i = 0; i < ga.size(); ++i) EXPECT_NEAR(ga[i], gb[i], 1e-12 * scale);
  }
  EXPECT_GT(applied, static_cast<int>(kPlans) / 2);
}

TEST(RandomPlan, RecomputeChangesNoBit) {
  int longer = 0;
  for (uint64_t seed = 0; seed < kPlans; ++seed) {
    for (bool fuse : {false, true}) {
      SCOPED_TRACE(seed);
      RandomPlan kept = make_random_plan({.seed = seed, .fuse = fuse});
      RandomPlan again = make_random_plan({.seed = seed, .fuse = fuse, .recompute = true});
      longer += again.plan.steps.size() > kept.plan.steps.size();
      RefRun<double> a(kept), b(again);
      EXPECT_EQ(a.loss(), b.loss());
      EXPECT_EQ(a.grads(), b.grads());
    }
  }
  EXPECT_GT(longer, static_cast<int>(kPlans) / 2);
}

// Loss, then gradients, of a random plan on a back end.
std::vector<float> run_on(const RandomPlan& made, Backend& backend) {
  Bindings bindings(made.plan.values.size());
  const std::vector<WeightForm> forms = backend.weight_forms(made.plan);
  auto bind = [&](ValueId id, uint64_t key, float scale) {
    const Value& v = made.plan.value(id);
    std::vector<float> data = contents(v, key, scale);
    std::vector<bf16> narrow;
    for (float x : data) narrow.push_back(to_bf16(x));
    bool is_bf16 = v.dtype == DType::kBF16;
    const auto at = static_cast<size_t>(id);
    bindings[at] = backend.prepare(v, forms[at],
                                   is_bf16 ? static_cast<const void*>(narrow.data()) : data.data());
  };
  bind(made.params, 1, 0.7f);
  bind(made.grads, 2, 0.0f);
  for (size_t i = 0; i < made.weights.size(); ++i) bind(made.weights[i], 3 + i, 0.7f);
  auto program = backend.compile(made.plan, bindings);
  feed_all(*program, made);
  program->run();
  program->wait();
  std::vector<float> result(1 + static_cast<size_t>(made.plan.value(made.grads).shape[0]));
  program->read(made.loss, result.data(), sizeof(float));
  program->read(made.grads, result.data() + 1, sizeof(float) * (result.size() - 1));
  return result;
}

// Back ends with 1, 2 and 3 threads.
std::vector<std::unique_ptr<Backend>> open_cpu(const std::string& isa = {}) {
  std::vector<std::unique_ptr<Backend>> opened;
  for (int threads : {1, 2, 3})
    opened.push_back(open_backend({.device = "cpu", .threads = threads, .cpu_isa = isa}));
  return opened;
}

// Deep random networks lose a few digits on the way; the op runner holds each kernel to its own
// bound, this holds the program together.
TEST(RandomPlan, CpuAgreesWithRefForAnyThreads) {
  const auto cpu = open_cpu();
  for (uint64_t seed = 0; seed < kPlans; ++seed) {
    SCOPED_TRACE(seed);
    RandomPlan made = make_random_plan({.seed = seed, .fuse = true, .recompute = seed % 2 == 0});
    RefRun<double> ref(made);
    double loss = ref.loss();
    std::vector<double> want = ref.grads();
    std::vector<float> got = run_on(made, *cpu[0]);
    double scale = std::max(largest(want), std::abs(loss));
    EXPECT_NEAR(got[0], loss, 1e-3 * scale);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[1 + i], want[i], 1e-3 * scale);
    EXPECT_EQ(got, run_on(made, *cpu[1]));
    EXPECT_EQ(got, run_on(made, *cpu[2]));
  }
}

TEST(RandomPlan, DevicesAgreeWithRef) {
  for (const std::string& name : backend_names()) {
    if (name == "cpu" || name == "ref") continue;
    SCOPED_TRACE(name);
    const auto backend = open_backend({.device = name});
    for (uint64_t seed = 0; seed < kPlans; ++seed) {
      SCOPED_TRACE(seed);
      RandomPlan made = make_random_plan({.seed = seed, .fuse = true, .recompute = seed % 2 == 0});
      RefRun<double> ref(made);
      double loss = ref.loss();
      std::vector<double> want = ref.grads();
      std::vector<float> got = run_on(made, *backend);
      double scale = std::max(largest(want), std::abs(loss));
      EXPECT_NEAR(got[0], loss, 1e-3 * scale);
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[1 + i], want[i], 1e-3 * scale);
      EXPECT_EQ(got, run_on(made, *backend));
    }
  }
}

// With bf16 activations each step rounds once more. What a network makes of that depends on how it
// is conditioned, so the bound is on what most of them come to; which of them run, and that threads
// and recompute leave no trace, is exact.
TEST(RandomPlan, CpuAgreesWithRefInBf16) {
  for (const std::string& isa : cpu_isas()) {
    SCOPED_TRACE(isa);
    const auto cpu = open_cpu(isa);
    std::vector<double> errors;
    for (uint64_t seed = 0; seed < kPlans; seed += 3) {
      SCOPED_TRACE(seed);
      RandomPlanOptions options{.seed = seed, .fuse = true, .activations = DType::kBF16};
      RandomPlan made = make_random_plan(options);
      RefRun<double> ref(made);
      ref.loss();
      std::vector<double> want = ref.grads();
      std::vector<float> got = run_on(made, *cpu[0]);
      double error = 0, norm = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        error += (got[1 + i] - want[i]) * (got[1 + i] - want[i]);
        norm += want[i] * want[i];
      }
      errors.push_back(std::sqrt(error / norm));
      EXPECT_EQ(got, run_on(made, *cpu[2]));
      options.recompute = true;
      EXPECT_EQ(got, run_on(make_random_plan(options), *cpu[1]));
    }
    std::sort(errors.begin(), errors.end());
    EXPECT_LT(errors[errors.size() / 2], 0.02);
    EXPECT_LT(errors[errors.size() * 9 / 10], 0.1);
    EXPECT_LT(errors.back(), 1.0);
  }
}

// grad · v for random directions v at once, and a few derivatives alone.
TEST(RandomPlan, GradientsAgreeWithComplexStep) {
  constexpr double kStep = 1e-30;
  for (uint64_t seed = 0; seed < kPlans; ++seed) {
    SCOPED_TRACE(seed);
    RandomPlan both = make_random_plan({.seed = seed, .fuse = true, .recompute = true});
    RandomPlan forward = make_random_plan({.seed = seed, .reverse = false});
    RefRun<double> reversed(both);
    double loss = reversed.loss();
    std::vector<double> grads = reversed.grads();
    RefRun<Complex> stepped(forward);
    Rng rng(seed);
    for (int trial = 0; trial < 12; ++trial) {
      int64_t alone = static_cast<int64_t>(rng.below(static_cast<uint64_t>(both.used)));
      // Where the softmax saturates, derivatives are the rounding of numbers as large as the loss.
      double want = 0, scale = std::abs(loss);
      for (int64_t i = 0; i < stepped.count(); ++i) {
        double v = trial < 4 ? rng.normal() : (i == alone ? 1.0 : 0.0);
        stepped.params()[i] = Complex(stepped.params()[i].real(), kStep * v);
        want += v * grads[static_cast<size_t>(i)];
        scale = std::max(scale, std::abs(grads[static_cast<size_t>(i)]));
      }
      Complex got = stepped.loss();
      EXPECT_NEAR(got.imag() / kStep, want, 1e-10 * scale);
      EXPECT_NEAR(got.real(), loss, 1e-10 * std::abs(loss));
    }
  }
}

}  // namespace
}  // namespace wick
