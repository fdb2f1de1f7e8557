// SPDX-License-Identifier: Apache-2.0
// Loops that reach a machine's limits: bf16 products in registers or tiles, and reads of memory.
#include "backend/cpu/speed.h"

#include <cstdint>

#include "backend/cpu/rungs.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define WICK_HAS_BF16_UNITS 1
#else
#define WICK_HAS_BF16_UNITS 0
#endif

namespace wick::cpu {

namespace {

// One word of each line brings the line.
template <size_t Streams>
uint64_t read_streams(const void* data, size_t bytes) {
  constexpr size_t kLine = 64, kAhead = (Streams == 1 ? 32 : 16) * kLine;
  const size_t lines = bytes / kLine / Streams;
  const char* at = static_cast<const char*>(data);
  uint64_t sum = 0;
  for (size_t i = 0; i < lines; ++i, at += kLine)
    for (size_t s = 0; s < Streams; ++s) {
      __builtin_prefetch(at + s * lines * kLine + kAhead);
      sum += *reinterpret_cast<const volatile uint64_t*>(at + s * lines * kLine);
    }
  return sum;
}

}  // namespace

#if WICK_HAS_BF16_UNITS

namespace {

// Four products of 16 x 32 by 32 x 16 a round, as many as the tiles allow to overlap.
double amx_loop(int64_t rounds) {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  for (int64_t i = 0; i < rounds; ++i)
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n\t"
        "tdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n\t"
        "tdpbf16ps %tmm7, %tmm5, %tmm3");
  asm volatile("tilerelease" ::: "memory");
  return 4.0 * 2 * 16 * 16 * 32 * static_cast<double>(rounds);
}

__attribute__((target("avx512f,avx512bf16"))) double dot_loop(int64_t rounds) {
  constexpr int kSums = 12;
  __m512 sums[kSums];
  for (__m512& s : sums) s = _mm512_setzero_ps();
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), b = a;
  for (int64_t i = 0; i < rounds; ++i)
    for (__m512& s : sums) {
      s = _mm512_dpbf16_ps(s, a, b);
      asm volatile("" : "+v"(s));
    }
  return 64.0 * kSums * static_cast<double>(rounds);
}

}  // namespace

double bf16_peak_loop(Rung rung, int64_t rounds) {
  return rung == Rung::kAmx ? amx_loop(rounds) : dot_loop(rounds);
}

#else

double bf16_peak_loop(Rung, int64_t) { return 0; }

#endif

uint64_t read_loop(const void* data, size_t bytes) { return read_streams<1>(data, bytes); }
uint64_t read_four_loop(const void* data, size_t bytes) { return read_streams<4>(data, bytes); }

}  // namespace wick::cpu
