// SPDX-License-Identifier: Apache-2.0
// Few rows of x as integers of 15 or 8 bits by quantised rows (decoding). One row of w after the
// other, so that a thread reads one stream. 32 codes of 4 or 8 bits and their scale are eight or
// nine instructions, where f32 would take twenty. Bound by reading the codes from memory.
#include "backend/cpu/quant_fixed.h"

#if WICK_CPU_AVX2
#include "backend/cpu/stretches.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/quant_fixed-inl.h"

namespace wick::cpu {
namespace {

constexpr int64_t kChunk = 8;             // blocks whose scales are one vector
constexpr int64_t kTaskBytes = 48 << 10;  // of w
constexpr int64_t kAhead = 4 << 10;       // bytes of w
constexpr int64_t kRowsAtOnce = 4;
constexpr int64_t kOutputs = 64;  // whose sums are finished together

// Rows of x: [rows][chunks] of integers, and by block their scales and, beside codes of 4 bits,
// what takes back that those are too large by 8.
struct FixedX {
  char* ints;
  float *scales, *starts;
  int64_t row_bytes, row_blocks;
  int size;  // bytes of a number
  FixedX(const FixedCodes& w, int64_t rows, int x_bytes, void* scratch) : size(x_bytes) {
    row_blocks = (w.blocks + kChunk - 1) / kChunk * kChunk;
    row_bytes = row_blocks * kBlock * size;
    ints = static_cast<char*>(scratch);
    scales = reinterpret_cast<float*>(ints + rows * row_bytes);
    starts = scales + rows * row_blocks;
  }
};

}  // namespace
}  // namespace wick::cpu

WICK_AVX2_BEGIN
namespace wick::cpu {
namespace {

void fix_row(const Operand& x, int64_t row, int bits, const FixedX& to) {
  for (int64_t b = 0; b < to.row_blocks; ++b) {
    alignas(32) float part[kBlock];
    load_block(x, row, b, part);
    __m256i v[4];
    const float scale = fix_block(part, to.size == 1 ? kMostByte : kMostWord, v);
    auto* at = reinterpret_cast<__m256i*>(to.ints + row * to.row_bytes + b * kBlock * to.size);
    if (to.size == 1) {
      _mm256_storeu_si256(at, bytes_of(v));
    } else {
      _mm256_storeu_si256(at, words_of(v[0], v[1]));
      _mm256_storeu_si256(at + 1, words_of(v[2], v[3]));
    }
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(
        reinterpret_cast<__m256i*>(lanes),
        _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3])));
    int32_t sum = 0;
    for (int32_t lane : lanes) sum += lane;
    to.scales[row * to.row_blocks + b] = scale;
    to.starts[row * to.row_blocks + b] = bits == 4 ? -8.0f * scale * static_cast<float>(sum) : 0.0f;
  }
}

// The scale of which group each block of a chunk has.
inline __m256i scale_order(int64_t in_group) {
  alignas(32) int32_t lanes[kChunk];
  for (int32_t i = 0; i < kChunk; ++i) lanes[i] = i / static_cast<int32_t>(in_group);
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes));
}

// Scales of the blocks of a chunk, of which `count` exist; zero for the others.
inline __m256 chunk_scales(const uint8_t* at, int64_t count, __m256i order) {
  __m128i words;
  if (count == 8) {
    words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  } else if (count == 4) {
    words = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
  } else {
    alignas(16) uint8_t some[16] = {};
    std::memcpy(some, at, static_cast<size_t>(count) * 2);
    words = _mm_load_si128(reinterpret_cast<const __m128i*>(some));
  }
  const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
  return _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(wide, order));
}

inline __m256i load32(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
inline __m128i load16(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }

// 32 codes and as many numbers of x of Bytes bytes; `factors` of the rows lie kChunk apart.
template <int Bits, int Bytes, int Rows>
inline void add_block(const uint8_t* codes, const char* x, int64_t row_bytes, const float* factors,
                      __m256* total) {
  __m256i first, last = {};
  if constexpr (Bytes == 1) {
    const __m128i some = load16(codes);
    first = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(some, 4), some), _mm256_set1_epi8(15));
  } else if constexpr (Bits == 8) {
    first = _mm256_cvtepi8_epi16(load16(codes));
    last = _mm256_cvtepi8_epi16(load16(codes + 16));
  } else {
    const __m256i both = _mm256_cvtepu8_epi16(load16(codes));
    first = _mm256_and_si256(both, _mm256_set1_epi16(15));
    last = _mm256_srli_epi16(both, 4);
  }
  WICK_UNROLL
  for (int i = 0; i < Rows; ++i) {
    const char* at = x + i * row_bytes;
    __m256i sum;
    if constexpr (Bytes == 1)
      sum = _mm256_madd_epi16(_mm256_maddubs_epi16(first, load32(at)), _mm256_set1_epi16(1));
    else
      sum = _mm256_add_epi32(_mm256_madd_epi16(first, load32(at)),
                             _mm256_madd_epi16(last, load32(at + 32)));
    total[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_broadcast_ss(factors + i * kChunk),
                               total[i]);
  }
}

inline float sum_of(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// Sums of one output: of blocks by turns, and what the codes are too large by.
template <int Rows>
struct Totals {
  __m256 parts[2][Rows], start[Rows];
};

// Up to kChunk blocks. Whole chunks are told so by a constant.
template <int Bits, int Bytes, int Rows>
inline void add_chunk(const uint8_t* codes, int64_t blocks, const char* x, int64_t row_bytes,
                      const __m256* factor, Totals<Rows>& totals) {
  alignas(32) float factors[Rows * kChunk];
  WICK_UNROLL
  for (int i = 0; i < Rows; ++i) _mm256_store_ps(factors + i * kChunk, factor[i]);
  WICK_UNROLL
  for (int64_t b = 0; b < kChunk; ++b) {
    if (b >= blocks) break;
    add_block<Bits, Bytes, Rows>(codes + b * Bits * 4, x + b * kBlock * Bytes, row_bytes,
                                 factors + b, totals.parts[b % 2]);
  }
}

// sums[i * kOutputs] = x[row + i] · w[n].
template <int Bits, int Bytes, int Rows>
void fixed_dots(const FixedCodes& w, int64_t n, const FixedX& x, int64_t row, __m256i order,
                float* sums) {
  const uint8_t *codes = w.row(n), *scales = w.scales(n);
  const char* ints = x.ints + row * x.row_bytes;
  const float* x_scales = x.scales + row * x.row_blocks;
  const float* starts = x.starts + row * x.row_blocks;
  const int64_t per_chunk = kChunk / w.in_group;
  const int64_t in_last = (w.blocks % kChunk + w.in_group - 1) / w.in_group;
  Totals<Rows> totals;
  WICK_UNROLL
  for (int i = 0; i < Rows; ++i)
    totals.parts[0][i] = totals.parts[1][i] = totals.start[i] = _mm256_setzero_ps();
  for (int64_t b0 = 0; b0 < w.blocks; b0 += kChunk) {
    const int64_t left = w.blocks - b0;
    const __m256 scale = chunk_scales(scales, left >= kChunk ? per_chunk : in_last, order);
    __m256 factor[Rows];
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const int64_t at = i * x.row_blocks + b0;
      factor[i] = _mm256_mul_ps(scale, _mm256_loadu_ps(x_scales + at));
      if (Bits == 4)
        totals.start[i] = _mm256_fmadd_ps(scale, _mm256_loadu_ps(starts + at), totals.start[i]);
    }
    WICK_UNROLL
    for (int64_t line = 0; line < kChunk * Bits * 4; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + line), _MM_HINT_T0);
    if (left >= kChunk)
      add_chunk<Bits, Bytes, Rows>(codes, kChunk, ints, x.row_bytes, factor, totals);
    else
      add_chunk<Bits, Bytes, Rows>(codes, left, ints, x.row_bytes, factor, totals);
    codes += kChunk * Bits * 4;
    scales += per_chunk * 2;
    ints += kChunk * kBlock * Bytes;
  }
  WICK_UNROLL
  for (int i = 0; i < Rows; ++i)
    sums[i * kOutputs] = sum_of(
        _mm256_add_ps(_mm256_add_ps(totals.parts[0][i], totals.parts[1][i]), totals.start[i]));
}

using DotsFn = void (*)(const FixedCodes&, int64_t, const FixedX&, int64_t, __m256i, float*);
template <int Bits, int Bytes>
DotsFn dots_of(int64_t rows) {
  constexpr DotsFn kTable[kRowsAtOnce] = {fixed_dots<Bits, Bytes, 1>, fixed_dots<Bits, Bytes, 2>,
                                          fixed_dots<Bits, Bytes, 3>, fixed_dots<Bits, Bytes, 4>};
  return kTable[rows - 1];
}

// Outputs [n0, n1) of all rows.
void fixed_outputs(const FixedCodes& w, const FixedX& x, int64_t rows, const FixedFinish& finish,
                   int64_t n0, int64_t n1) {
  float sums[kRowsAtOnce * kOutputs];
  const __m256i order = scale_order(w.in_group);
  for (int64_t n = n0; n < n1; n += kOutputs) {
    const int64_t outputs = std::min(kOutputs, n1 - n);
    for (int64_t t = 0; t < rows; t += kRowsAtOnce) {
      const int64_t some = std::min(kRowsAtOnce, rows - t);
      const DotsFn fn = w.bits == 8   ? dots_of<8, 2>(some)
                        : x.size == 2 ? dots_of<4, 2>(some)
                                      : dots_of<4, 1>(some);
      for (int64_t i = 0; i < outputs; ++i) fn(w, n + i, x, t, order, sums + i);
      for (int64_t i = 0; i < some; ++i) finish_row(finish, t + i, n, outputs, sums + i * kOutputs);
    }
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_AVX2_END

namespace wick::cpu {

size_t fixed_few_scratch(const FixedCodes& w, int64_t rows, int x_bytes) {
  const FixedX x(w, rows, x_bytes, nullptr);
  return static_cast<size_t>(rows) *
         static_cast<size_t>(x.row_bytes + x.row_blocks * 2 * static_cast<int64_t>(sizeof(float)));
}

void multiply_fixed_few(ThreadPool& pool, const Operand& x, const FixedCodes& w, int x_bytes,
                        const FixedFinish& finish, void* scratch) {
  const FixedX fixed(w, x.rows, x_bytes, scratch);
  for (int64_t t = 0; t < x.rows; ++t) fix_row(x, t, w.bits, fixed);
  const int64_t grain = std::max<int64_t>(1, kTaskBytes / w.stride);
  in_stretches(pool, (w.rows + grain - 1) / grain, [&](auto next) {
    for (int64_t i; (i = next()) >= 0;)
      fixed_outputs(w, fixed, x.rows, finish, i * grain, std::min(w.rows, (i + 1) * grain));
  });
}

}  // namespace wick::cpu
#endif
