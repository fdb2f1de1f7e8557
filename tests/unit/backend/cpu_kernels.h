// SPDX-License-Identifier: Apache-2.0
// Runs one step on kernels of the cpu back end (any rung, any thread count) and on ref, with every
// matrix inside a wider one whose other elements must stay untouched.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/rungs.h"
#include "base/rng.h"

namespace wick::test {

// A matrix of floats or of ints. Halves are given as floats and rounded when made.
struct Matrix {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;
  std::vector<float> values;
  std::vector<int32_t> ints;
  bool present() const { return rows > 0; }
};

Matrix absent();
Matrix normal(Rng& rng, int64_t rows, int64_t cols, float size = 1.0f, DType dtype = DType::kF32);
Matrix integers(std::vector<int32_t> values);  // one row
Matrix integer_rows(int64_t cols, std::vector<int32_t> values);

struct Call {
  Op op;
  Dir dir = Dir::kForward;
  Attr attr = {};
  std::vector<Matrix> in = {}, out = {};  // `out` holds the start values
  std::vector<OutMode> modes = {};        // empty: all written
};

std::vector<cpu::Rung> working_rungs();
bool same_bits(float a, float b);

// The outputs. Fails the test where a byte outside an operand changes.
std::vector<Matrix> run_cpu(const Call& call, cpu::Rung rung, int threads);
std::vector<Matrix> run_ref(const Call& call);

// Seconds that `time` gives for a function that runs the call on one thread.
double call_seconds(const Call& call, cpu::Rung rung,
                    const std::function<double(const std::function<void()>&)>& time);

// Every working rung against ref: |a - b| <= tolerance * (1 + largest |b| of the output). And the
// same bits with one, two and three threads.
void check_call(const std::string& what, const Call& call, double tolerance = 2e-5);

}  // namespace wick::test
