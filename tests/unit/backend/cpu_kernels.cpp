// SPDX-License-Identifier: Apache-2.0
#include "unit/backend/cpu_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/ref/ref.h"
#include "base/check.h"
#include "base/half.h"
#include "base/threads.h"

namespace wick::test {
namespace {

constexpr int64_t kPad = 3;
constexpr unsigned char kGuard = 0xA5;

float rounded(float x, DType dtype) {
  if (dtype == DType::kBF16) return to_float(to_bf16(x));
  if (dtype == DType::kF16) return to_float(to_f16(x));
  return x;
}

std::shared_ptr<HostBuffer> guarded(size_t bytes) {
  auto buffer = std::make_shared<HostBuffer>(bytes);
  std::memset(buffer->data(), kGuard, buffer->bytes());
  return buffer;
}

// An operand's memory: rows of cols + 2 * kPad elements, one whole padded row before and after.
struct Memory {
  std::shared_ptr<HostBuffer> buffer;  // in large pages, as in a program
  std::span<unsigned char> bytes;
  Operand operand;

  // As the cpu back end holds it, or in f32 for ref.
  Memory(const Matrix& m, bool widened) {
    if (!m.present()) return;
    // Integers are feeds, which are never views.
    const int64_t ld = m.dtype == DType::kI32 ? m.cols : m.cols + 2 * kPad;
    operand = {.rows = m.rows, .cols = m.cols, .ld = ld, .dtype = m.dtype};
    if (widened && m.dtype != DType::kI32) operand.dtype = DType::kF32;
    const size_t size = dtype_bytes(operand.dtype);
    buffer = guarded(static_cast<size_t>((m.rows + 2) * ld + 2 * kPad) * size);
    bytes = {reinterpret_cast<unsigned char*>(buffer->data()), buffer->bytes()};
    operand.data = bytes.data() + static_cast<size_t>(operand.ld + kPad) * size;
    for (int64_t r = 0; r < m.rows; ++r)
      for (int64_t c = 0; c < m.cols; ++c) put(m, r, c);
  }

  unsigned char* at(int64_t r, int64_t c) const {
    return static_cast<unsigned char*>(operand.data) +
           static_cast<size_t>(r * operand.ld + c) * dtype_bytes(operand.dtype);
  }
  void put(const Matrix& m, int64_t r, int64_t c) {
    const size_t i = static_cast<size_t>(r * m.cols + c);
    if (m.dtype == DType::kI32) {
      std::memcpy(at(r, c), &m.ints[i], 4);
      return;
    }
    float x = m.values[i];
    bf16 b = to_bf16(x);
    f16 h = to_f16(x);
    if (operand.dtype == DType::kF32) std::memcpy(at(r, c), &x, 4);
    if (operand.dtype == DType::kBF16) std::memcpy(at(r, c), &b, 2);
    if (operand.dtype == DType::kF16) std::memcpy(at(r, c), &h, 2);
  }
  Matrix take() const {
    Matrix m{operand.rows, operand.cols, DType::kF32, {}, {}};
    if (!operand) return m;
    for (int64_t r = 0; r < m.rows; ++r)
      for (int64_t c = 0; c < m.cols; ++c) {
        float x = 0;
        bf16 b;
        std::memcpy(&x, at(r, c), operand.dtype == DType::kF32 ? 4 : 0);
        std::memcpy(&b, at(r, c), operand.dtype == DType::kBF16 ? 2 : 0);
        m.values.push_back(operand.dtype == DType::kBF16 ? to_float(b) : x);
      }
    return m;
  }
  // What lies outside the operand, to compare before and after.
  std::vector<unsigned char> outside() const {
    std::vector<unsigned char> copy(bytes.begin(), bytes.end());
    if (!operand) return copy;
    const size_t size = dtype_bytes(operand.dtype);
    for (int64_t r = 0; r < operand.rows; ++r)
      std::memset(copy.data() + (at(r, 0) - bytes.data()), kGuard,
                  static_cast<size_t>(operand.cols) * size);
    return copy;
  }
};

// A call's operands in memory and the kernel that takes them.
class Prepared {
 public:
  Prepared(const Call& call, std::span<const Candidate> candidates, bool widened, int threads)
      : call_(call), widened_(widened), pool_(threads) {
    step_ = {call.op, call.dir, {}, {}, call.attr};
    for (const Matrix& m : call.in) in_.emplace_back(m, widened);
    for (const Matrix& m : call.out) out_.emplace_back(m, widened);
    for (const Memory& m : in_) ins_.push_back(m.operand);
    for (size_t i = 0; i < out_.size(); ++i) {
      outs_.push_back(out_[i].operand);
      step_.outputs.push_back({kNone, call.modes.empty() ? OutMode::kWrite : call.modes[i]});
    }
    args_ = {.step = &step_, .in = ins_, .out = outs_, .scratch = nullptr, .pool = &pool_};
    for (const Candidate& c : candidates)
      if (c.op == call.op && c.dir == call.dir && (!c.accepts || c.accepts(args_))) {
        kernel_ = c;
        break;
      }
    if (kernel_.fn == nullptr) {
      ADD_FAILURE() << "no kernel accepts " << op_name(call.op);
      return;
    }
    scratch_bytes_ = kernel_.scratch ? kernel_.scratch(args_, threads) : 0;
    scratch_ = guarded(scratch_bytes_ + 128);
    args_.scratch = scratch_->data();
  }
  Prepared(const Prepared&) = delete;

  void run() {
    if (kernel_.fn != nullptr) kernel_.fn(args_);
  }

  std::vector<Matrix> results() const {
    for (size_t i = scratch_bytes_; i < scratch_->bytes(); ++i)
      EXPECT_EQ(scratch_->data()[i], std::byte{kGuard}) << kernel_.name << " leaves its scratch";
    for (size_t i = 0; i < in_.size(); ++i)
      EXPECT_TRUE(std::ranges::equal(in_[i].bytes, Memory(call_.in[i], widened_).bytes))
          << kernel_.name << " changes input " << i;
    std::vector<Matrix> results;
    for (const Memory& m : out_) {
      const std::vector<unsigned char> outside = m.outside();
      EXPECT_TRUE(
          std::all_of(outside.begin(), outside.end(), [](unsigned char b) { return b == kGuard; }))
          << kernel_.name << " writes outside output " << results.size();
      results.push_back(m.take());
    }
    return results;
  }

 private:
  const Call& call_;
  bool widened_;
  Step step_;
  std::vector<Memory> in_, out_;
  std::vector<Operand> ins_, outs_;
  ThreadPool pool_;
  StepArgs args_;
  Candidate kernel_{};
  size_t scratch_bytes_ = 0;
  std::shared_ptr<HostBuffer> scratch_;
};

std::vector<Matrix> run(const Call& call, std::span<const Candidate> candidates, bool widened,
                        int threads) {
  Prepared prepared(call, candidates, widened, threads);
  prepared.run();
  return prepared.results();
}

std::vector<Candidate> cpu_candidates(cpu::Rung rung) {
  std::vector<Candidate> all;
  for (auto list : {cpu::linear_candidates, cpu::norm_candidates, cpu::elementwise_candidates,
                    cpu::row_candidates, cpu::attention_fwd_candidates,
                    cpu::attention_bwd_candidates, cpu::head_candidates, cpu::optimizer_candidates})
    for (const Candidate& c : list(rung)) all.push_back(c);
  return all;
}

}  // namespace

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

Matrix absent() { return {}; }

Matrix normal(Rng& rng, int64_t rows, int64_t cols, float size, DType dtype) {
  Matrix m{rows, cols, dtype, {}, {}};
  for (int64_t i = 0; i < rows * cols; ++i) m.values.push_back(rounded(size * rng.normal(), dtype));
  return m;
}

Matrix integer_rows(int64_t cols, std::vector<int32_t> values) {
  const int64_t rows = static_cast<int64_t>(values.size()) / cols;
  return {rows, cols, DType::kI32, {}, std::move(values)};
}
Matrix integers(std::vector<int32_t> values) {
  const int64_t cols = static_cast<int64_t>(values.size());
  return integer_rows(cols, std::move(values));
}

std::vector<cpu::Rung> working_rungs() {
  std::vector<cpu::Rung> rungs;
  for (int i = 0; i < cpu::kRungCount; ++i)
    if (cpu::rung_works(static_cast<cpu::Rung>(i))) rungs.push_back(static_cast<cpu::Rung>(i));
  return rungs;
}

std::vector<Matrix> run_cpu(const Call& call, cpu::Rung rung, int threads) {
  return run(call, cpu_candidates(rung), false, threads);
}
std::vector<Matrix> run_ref(const Call& call) {
  return run(call, ref_candidates<float>(), true, 1);
}

double call_seconds(const Call& call, cpu::Rung rung,
                    const std::function<double(const std::function<void()>&)>& time) {
  const std::vector<Candidate> candidates = cpu_candidates(rung);
  Prepared prepared(call, candidates, false, 1);
  return time([&] { prepared.run(); });
}

void check_call(const std::string& what, const Call& call, double tolerance) {
  const std::vector<Matrix> want = run_ref(call);
  for (cpu::Rung rung : working_rungs()) {
    const std::string where = cat(what, " on ", cpu::rung_name(rung));
    const std::vector<Matrix> got = run_cpu(call, rung, 1);
    ASSERT_EQ(got.size(), want.size()) << where;
    for (size_t i = 0; i < got.size(); ++i) {
      double largest = 0;
      for (float x : want[i].values)
        if (std::isfinite(x)) largest = std::max(largest, std::abs(static_cast<double>(x)));
      for (size_t j = 0; j < got[i].values.size(); ++j) {
        const double a = got[i].values[j], b = want[i].values[j];
        if (a == b) continue;
        ASSERT_LE(std::abs(a - b), tolerance * (1 + largest))
            << where << ", output " << i << ", element " << j << ": " << a << " instead of " << b;
      }
    }
    for (int threads : {2, 3}) {
      const std::vector<Matrix> again = run_cpu(call, rung, threads);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_TRUE(std::ranges::equal(again[i].values, got[i].values, same_bits))
            << where << ", output " << i << ", " << threads << " threads";
    }
  }
}

}  // namespace wick::test
