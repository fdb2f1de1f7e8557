// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <complex>

#include "backend/host_program.h"
#include "backend/ref/ref.h"
#include "base/check.h"
#include "base/half.h"
#include "plan/recorder.h"

namespace wick {
namespace {

TEST(HostBuffer, IsAlignedAndZeroAtEverySize) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{1} << 20, (size_t{3} << 20) + 5}) {
    HostBuffer buffer(bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kArenaAlignment, 0u);
    for (size_t i = 0; i < bytes; i += 511) EXPECT_EQ(buffer.data()[i], std::byte{0});
  }
  EXPECT_THROW(HostBuffer(~size_t{0}), Error);
}

TEST(Registry, SaysWhyADeviceIsMissing) {
  for (const MissingBackend& missing : missing_backends()) {
    for (const BackendOptions& options :
         {BackendOptions{.device = missing.name}, BackendOptions{.cuda_arch = "sm_80"}}) {
      if (missing.name != "cuda") continue;
      try {
        open_backend(options);
        ADD_FAILURE() << "cuda opened";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kNotFound);
        EXPECT_NE(std::string(e.what()).find(missing.why), std::string::npos) << e.what();
      }
    }
  }
}

TEST(Registry, NamesItsDevices) {
  EXPECT_EQ(open_backend({.device = "ref", .threads = 1, .cpu_isa = {}})->info().name, "ref");
  EXPECT_EQ(open_backend({.device = "auto", .threads = 1, .cpu_isa = {}})->info().name,
            backend_names().front());
  try {
    open_backend({.device = "tpu", .threads = 1, .cpu_isa = {}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotFound);
    EXPECT_NE(std::string(e.what()).find("ref"), std::string::npos);
  }
}

template <class S>
class RefElements : public testing::Test {};
using Scalars = testing::Types<float, double, std::complex<double>>;
TYPED_TEST_SUITE(RefElements, Scalars);

TYPED_TEST(RefElements, ConvertBothWays) {
  RefBackend<TypeParam> backend;
  std::vector<float> f32 = {1.5f, -2.25f, 3e-3f};
  BufferPtr buffer = backend.allocate(DType::kF32, 5);
  EXPECT_EQ(buffer->bytes(), 5 * sizeof(TypeParam));
  backend.upload(*buffer, DType::kF32, 1, 3, f32.data());
  EXPECT_EQ(RefBackend<TypeParam>::elements(*buffer)[2], TypeParam(-2.25));
  std::vector<float> back(3);
  backend.download(*buffer, DType::kF32, 1, 3, back.data());
  EXPECT_EQ(back, f32);

  bf16 b = to_bf16(0.3f), b_back;
  buffer = backend.allocate(DType::kBF16, 1);
  backend.upload(*buffer, DType::kBF16, 0, 1, &b);
  EXPECT_EQ(*RefBackend<TypeParam>::elements(*buffer), TypeParam(to_float(b)));
  backend.download(*buffer, DType::kBF16, 0, 1, &b_back);
  EXPECT_EQ(b_back.bits, b.bits);

  f16 h = to_f16(0.3f), h_back;
  buffer = backend.allocate(DType::kF16, 1);
  backend.upload(*buffer, DType::kF16, 0, 1, &h);
  backend.download(*buffer, DType::kF16, 0, 1, &h_back);
  EXPECT_EQ(h_back.bits, h.bits);

  EXPECT_EQ(backend.element_bytes(DType::kI32), 4u);
  EXPECT_THROW(backend.upload(*buffer, DType::kF16, 1, 1, &h), Error);
  EXPECT_THROW(backend.download(*buffer, DType::kF16, 0, 2, &h_back), Error);
}

struct Small {
  Plan plan;
  ValueId x, w, y, right;

  Small() {
    Recorder r(plan, false);
    x = r.feed("x", {2, 3}, DType::kF32);
    w = r.weight("w", {4, 3}, DType::kBF16);
    y = r.linear(x, w);
    right = r.cols(y, 2, 4);
    y = r.scale(y, 2.0f);
    plan.results = {y, right};
  }
};

TEST(HostProgram, RunsAndReadsViews) {
  Small s;
  RefBackend<float> backend;
  Bindings bindings(s.plan.values.size());
  BufferPtr w = bindings[static_cast<size_t>(s.w)] = backend.allocate(DType::kBF16, 12);
  std::vector<bf16> weights;
  for (int i = 0; i < 12; ++i) weights.push_back(to_bf16(static_cast<float>(i)));
  backend.upload(*w, DType::kBF16, 0, 12, weights.data());
  auto program = backend.compile(s.plan, bindings);
  std::vector<float> x = {1, 0, 0, 0, 1, 0}, y(8), right(4);
  program->feed(s.x, x.data(), sizeof(float) * x.size());
  program->run();
  program->wait();
  program->read(s.y, y.data(), sizeof(float) * y.size());
  program->read(s.right, right.data(), sizeof(float) * right.size());
  EXPECT_EQ(y, (std::vector<float>{0, 6, 12, 18, 2, 8, 14, 20}));
  EXPECT_EQ(right, (std::vector<float>{6, 9, 7, 10}));

  EXPECT_THROW(program->feed(s.x, x.data(), 20), Error);
  EXPECT_THROW(program->feed(s.w, x.data(), 24), Error);
  EXPECT_THROW(program->read(s.right, right.data(), 4), Error);
}

TEST(HostProgram, RefusesWrongBindingsAndArenas) {
  Small s;
  RefBackend<float> backend;
  Bindings bindings(s.plan.values.size());
  EXPECT_THROW(backend.compile(s.plan, bindings), Error);
  bindings[static_cast<size_t>(s.w)] = backend.allocate(DType::kBF16, 11);
  EXPECT_THROW(backend.compile(s.plan, bindings), Error);
  bindings[static_cast<size_t>(s.w)] = backend.allocate(DType::kBF16, 12);
  EXPECT_THROW(backend.compile(s.plan, bindings, std::make_shared<HostBuffer>(8)), Error);
  EXPECT_NO_THROW(backend.compile(s.plan, bindings, std::make_shared<HostBuffer>(4096)));
}

TEST(Forecast, EqualsWhatTheProgramTakes) {
  Small s;
  RefBackend<double> backend;
  MemoryForecast forecast = forecast_memory(s.plan, backend);
  EXPECT_EQ(forecast.weights, 12 * 8);
  EXPECT_EQ(forecast.feeds, 64);
  Bindings bindings(s.plan.values.size());
  bindings[static_cast<size_t>(s.w)] = backend.allocate(DType::kBF16, 12);
  EXPECT_EQ(forecast.arena, static_cast<int64_t>(backend.compile(s.plan, bindings)->arena_bytes()));
}

TEST(Select, NamesWhatIsMissing) {
  Small s;
  const Candidate only_scale[] = {
      {Op::kScale, Dir::kForward, "scale_fwd", nullptr, nullptr, nullptr}};
  try {
    select_candidates(s.plan, only_scale, 1, "toy");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    std::string message = e.what();
    for (const char* part : {"toy", "linear", "forward", "bf16 [4, 3]", "f32 [2, 3]"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
}

TEST(Select, TakesTheFirstThatAccepts) {
  Small s;
  auto never = [](const StepArgs&) { return false; };
  auto bf16_weight = [](const StepArgs& args) {
    return args.in[1].dtype == DType::kBF16 && !args.in[2] && args.in[1].rows == 4;
  };
  auto scratch = [](const StepArgs& args, int threads) {
    return static_cast<size_t>(args.in[0].cols * threads);
  };
  const Candidate candidates[] = {
      {Op::kLinear, Dir::kForward, "never", nullptr, never, nullptr},
      {Op::kLinear, Dir::kForward, "plain", nullptr, nullptr, nullptr},
      {Op::kLinear, Dir::kForward, "bf16", nullptr, bf16_weight, scratch},
      {Op::kScale, Dir::kForward, "scale", nullptr, nullptr, nullptr},
  };
  Selection selection = select_candidates(s.plan, candidates, 5, "toy");
  ASSERT_EQ(selection.steps.size(), 2u);
  EXPECT_EQ(selection.steps[0].kernel, "bf16");
  EXPECT_EQ(selection.steps[0].candidate, 2);
  EXPECT_EQ(selection.steps[1].kernel, "scale");
  EXPECT_EQ(selection.scratch_bytes(), (std::vector<size_t>{15, 0}));
}

}  // namespace
}  // namespace wick
