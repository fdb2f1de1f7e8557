// SPDX-License-Identifier: Apache-2.0
// Products of quantised rows (quant/rows.h) by AVX2's instructions, on the rungs avx2 and avx512
// (which has no bytes of its own without VNNI), where a plan only generates
// (LinearAttr::narrow). x becomes integers with a scale for each block of 32 columns: of 15 bits,
// or of 8 where that is allowed and codes have 4. A block's sum is then exact, made of products of
// pairs, 16 or 32 to an instruction where f32 has 8, and scaled once.
#pragma once

#include "backend/cpu/rungs.h"
#include "backend/kernels.h"
#include "base/threads.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define WICK_CPU_AVX2 1
#include <immintrin.h>

#if defined(__clang__)
#define WICK_AVX2_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"avx2,fma\"))), apply_to = function)")
#define WICK_AVX2_END _Pragma("clang attribute pop")
#else
#define WICK_AVX2_BEGIN _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define WICK_AVX2_END _Pragma("GCC pop_options")
#endif
#else
#define WICK_CPU_AVX2 0
#endif

namespace wick::cpu {

// A matrix of quantised rows.
struct FixedCodes {
  const uint8_t* data;
  int64_t rows, stride, code_bytes, blocks;  // blocks of 32 columns
  int64_t in_group;                          // of them with one scale
  int bits;

  explicit FixedCodes(const Operand& w);
  const uint8_t* row(int64_t r) const { return data + r * stride; }
  const uint8_t* scales(int64_t r) const { return row(r) + code_bytes; }
  int64_t block_bytes() const { return bits * 4; }
};

// y (+)= scale * sum + bias for rows of one output after the other.
struct FixedFinish {
  Operand y, bias;
  float scale;
  bool add;
};

// y = x wᵀ for few rows, x in `x_bytes` bytes (1 beside codes of 4 bits only): bound by reading the
// codes from memory.
size_t fixed_few_scratch(const FixedCodes& w, int64_t rows, int x_bytes);
void multiply_fixed_few(ThreadPool& pool, const Operand& x, const FixedCodes& w, int x_bytes,
                        const FixedFinish& finish, void* scratch);

// The same for many rows, x in two bytes beside codes of 8 bits and one beside codes of 4: bound by
// the products.
size_t fixed_many_scratch(const FixedCodes& w, int64_t rows, int threads);
void multiply_fixed_many(ThreadPool& pool, const Operand& x, const FixedCodes& w,
                         const FixedFinish& finish, void* scratch);

Candidates fixed_linear_candidates(Rung rung);  // of avx2 and avx512; empty for the others

}  // namespace wick::cpu
