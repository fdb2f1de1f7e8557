// SPDX-License-Identifier: Apache-2.0
// Few rows of x as integers of 15 or 8 bits by quantised rows (decoding). 32 bytes of codes are
// taken at a time: two blocks of 4 bits, whose sums stay in a half of the vector each, or one of 8.
// Rows of w that lie apart are multiplied together, so that a number of x is loaded once for all of
// them and each is the next of a stream that goes on from row to row. Bound by reading the codes
// from memory.
#include "backend/cpu/quant_fixed.h"

#if WICK_CPU_AVX2
#include "backend/cpu/stretches.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/quant_fixed-inl.h"

namespace wick::cpu {
namespace {

constexpr int64_t kUnit = 32;              // bytes of codes taken at a time
constexpr int64_t kLanes = 8;              // sums of a unit
constexpr int64_t kTaskBytes = 128 << 10;  // of w
constexpr int64_t kAhead = 4 << 10;        // bytes of w
constexpr int64_t kRowsAtOnce = 4;
constexpr int64_t kSums = 32;  // of each stream that are finished together

// A number of x beside codes of 4 bits is 256 high + low, both of them bytes with a sign.
constexpr float kMostBytes = 127.0f * 256 + 127;

// Rows of x by units, in the order of their codes. Of a unit: its integers (beside codes of 4 bits
// those of the bytes' low halves and then of the high ones; first all high bytes, then all low
// ones); its block's scale for each sum; beside codes of 4 bits, what takes back that those are too
// large by 8, for one sum of each block.
struct FixedX {
  char* ints;
  float* scales;
  int32_t* starts;
  int64_t units, unit_ints;
  int bits, size;  // of a code; bytes of a number
  FixedX(const FixedCodes& w, int64_t rows, int x_bytes, void* scratch)
      : bits(w.bits), size(x_bytes) {
    const int64_t blocks = kUnit / w.block_bytes();
    units = (w.blocks + blocks - 1) / blocks;
    unit_ints = blocks * kBlock * size;
    ints = static_cast<char*>(scratch);
    scales = reinterpret_cast<float*>(ints + rows * units * unit_ints);
    starts = reinterpret_cast<int32_t*>(scales + rows * units * kLanes);
  }
  int64_t row_bytes() const { return units * (unit_ints + kLanes * 8); }
  const char* ints_of(int64_t row) const { return ints + row * units * unit_ints; }
  const float* scales_of(int64_t row) const { return scales + row * units * kLanes; }
  const int32_t* starts_of(int64_t row) const { return starts + row * units * kLanes; }
};

}  // namespace
}  // namespace wick::cpu

WICK_AVX2_BEGIN
namespace wick::cpu {
namespace {

inline void store_halves(char* to, __m256i bytes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(bytes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kUnit), _mm256_extracti128_si256(bytes, 1));
}

// Half `half` of a unit beside codes of 4 bits.
inline void store_half(const __m256i v[4], int size, int64_t half, char* unit) {
  char* at = unit + half * kUnit / 2;
  if (size == 1) return store_halves(at, bytes_of(v));
  __m256i high[4], low[4];
  for (int i = 0; i < 4; ++i) {
    low[i] = _mm256_srai_epi32(_mm256_slli_epi32(v[i], 24), 24);
    high[i] = _mm256_srai_epi32(_mm256_sub_epi32(v[i], low[i]), 8);
  }
  store_halves(at, bytes_of(high));
  store_halves(at + 2 * kUnit, bytes_of(low));
}

void fix_row(const Operand& x, int64_t row, const FixedX& to) {
  const float most = to.size == 1 ? kMostByte : to.bits == 4 ? kMostBytes : kMostWord;
  for (int64_t u = 0; u < to.units; ++u) {
    const int64_t unit = row * to.units + u;
    char* ints = to.ints + unit * to.unit_ints;
    float* scales = to.scales + unit * kLanes;
    int32_t* starts = to.starts + unit * kLanes;
    const int64_t blocks = to.unit_ints / (kBlock * to.size), lanes = kLanes / blocks;
    for (int64_t b = 0; b < blocks; ++b) {
      alignas(32) float part[kBlock];
      load_block(x, row, u * blocks + b, part);
      __m256i v[4];
      std::fill_n(scales + b * lanes, lanes, fix_block(part, most, v));
      if (to.bits == 8) {
        auto* at = reinterpret_cast<__m256i*>(ints);
        _mm256_storeu_si256(at, words_of(v[0], v[1]));
        _mm256_storeu_si256(at + 1, words_of(v[2], v[3]));
        continue;
      }
      store_half(v, to.size, b, ints);
      alignas(32) int32_t sums[8];
      _mm256_store_si256(
          reinterpret_cast<__m256i*>(sums),
          _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3])));
      std::fill_n(starts + b * lanes, lanes, 0);
      for (int32_t sum : sums) starts[b * lanes] -= 8 * sum;
    }
  }
}

inline __m256i load32(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
inline __m128i load16(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }

// A unit's codes: bytes from low and high halves, or the words of its first and last half.
struct UnitCodes {
  __m256i first, last;
};
inline UnitCodes halves_of(__m256i codes) {
  const __m256i low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(codes, low), _mm256_and_si256(_mm256_srli_epi16(codes, 4), low)};
}
template <int Bits>
inline UnitCodes load_codes(const uint8_t* at) {
  if constexpr (Bits == 4) return halves_of(load32(at));
  return {_mm256_cvtepi8_epi16(load16(at)), _mm256_cvtepi8_epi16(load16(at + 16))};
}

// Sums of a unit's products with bytes of x, by pairs. They do not overflow: 4 · 15 · 128.
inline __m256i byte_sums(const UnitCodes& codes, const char* x) {
  return _mm256_add_epi16(_mm256_maddubs_epi16(codes.first, load32(x)),
                          _mm256_maddubs_epi16(codes.last, load32(x + 32)));
}
template <int Bits, int Bytes>
inline __m256i unit_sums(const UnitCodes& codes, const char* x, const int32_t* starts) {
  if constexpr (Bits == 8)
    return _mm256_add_epi32(_mm256_madd_epi16(codes.first, load32(x)),
                            _mm256_madd_epi16(codes.last, load32(x + 32)));
  const __m256i one = _mm256_set1_epi16(1);
  __m256i sums = load32(starts);
  if constexpr (Bytes == 2) {
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(byte_sums(codes, x), _mm256_set1_epi16(256)));
    x += 2 * kUnit;
  }
  return _mm256_add_epi32(sums, _mm256_madd_epi16(byte_sums(codes, x), one));
}

// A bf16 in the high half of all words; or, Own, in the low half the one of the first four sums
// and in the high half that of the last.
template <bool Own>
inline __m256 unit_scales(uint32_t word) {
  __m256i words = _mm256_set1_epi32(static_cast<int>(word));
  if (Own) words = _mm256_sllv_epi32(words, _mm256_setr_epi32(16, 16, 16, 16, 0, 0, 0, 0));
  return _mm256_castsi256_ps(
      _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

inline float sum_of(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// Streams of rows of w beside so many rows of x.
constexpr int streams_of(int64_t rows) { return rows == 1 ? 4 : 2; }

// sums[(j * Rows + i) * kSums] = x[row + i] · w[ns[j]]. Own: the blocks of a unit have their own
// scales.
template <int Bits, int Bytes, bool Own, int Rows>
void fixed_dots(const FixedCodes& w, const int64_t* ns, const FixedX& x, int64_t row, float* sums) {
  constexpr int kStreams = streams_of(Rows);
  constexpr int64_t kUnitBlocks = 8 / Bits, kInts = kUnitBlocks * kBlock * Bytes;
  const uint8_t *codes[kStreams], *scales[kStreams];
  const char* ints = x.ints_of(row);
  const float* x_scales = x.scales_of(row);
  const int32_t* starts = x.starts_of(row);
  __m256 total[kStreams][Rows];
  WICK_UNROLL
  for (int j = 0; j < kStreams; ++j) {
    codes[j] = w.row(ns[j]);
    scales[j] = w.scales(ns[j]);
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) total[j][i] = _mm256_setzero_ps();
  }
  const auto add = [&](int64_t u, int j, const UnitCodes& some, __m256 scale)
      __attribute__((always_inline)) {
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const int64_t at = i * x.units + u;
      const __m256i sum = unit_sums<Bits, Bytes>(some, ints + at * kInts, starts + at * kLanes);
      const __m256 factor = _mm256_mul_ps(scale, _mm256_loadu_ps(x_scales + at * kLanes));
      total[j][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), factor, total[j][i]);
    }
  };
  const int64_t whole = w.blocks / kUnitBlocks;
  const int64_t in_group = std::max<int64_t>(1, w.in_group / kUnitBlocks);
  int64_t scale_at = Own ? 0 : -2, left = in_group;
  for (int64_t u = 0; u < whole; ++u) {
    WICK_UNROLL
    for (int j = 0; j < kStreams; ++j) {
      const uint8_t* at = codes[j] + u * kUnit;
      _mm_prefetch(reinterpret_cast<const char*>(at + kAhead), _MM_HINT_T0);
      uint32_t word;
      std::memcpy(&word, scales[j] + scale_at, sizeof word);
      add(u, j, load_codes<Bits>(at), unit_scales<Own>(word));
    }
    if (--left == 0) {
      scale_at += Own ? 4 : 2;
      left = in_group;
    }
  }
  if (w.blocks % kUnitBlocks != 0) {
    WICK_UNROLL
    for (int j = 0; j < kStreams; ++j) {
      uint16_t last;
      std::memcpy(&last, scales[j] + scale_at + (Own ? 0 : 2), sizeof last);
      const __m256i half = _mm256_zextsi128_si256(load16(codes[j] + whole * kUnit));
      add(whole, j, halves_of(half), unit_scales<Own>(Own ? last : uint32_t{last} << 16));
    }
  }
  WICK_UNROLL
  for (int j = 0; j < kStreams; ++j) {
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) sums[(j * Rows + i) * kSums] = sum_of(total[j][i]);
  }
}

using DotsFn = void (*)(const FixedCodes&, const int64_t*, const FixedX&, int64_t, float*);
template <int Bits, int Bytes, bool Own = false>
DotsFn dots_of(int64_t rows) {
  constexpr DotsFn kTable[kRowsAtOnce] = {
      fixed_dots<Bits, Bytes, Own, 1>, fixed_dots<Bits, Bytes, Own, 2>,
      fixed_dots<Bits, Bytes, Own, 3>, fixed_dots<Bits, Bytes, Own, 4>};
  return kTable[rows - 1];
}
DotsFn dots_of(const FixedCodes& w, int x_bytes, int64_t rows) {
  if (w.bits == 8) return dots_of<8, 2>(rows);
  if (w.in_group == 1) return x_bytes == 2 ? dots_of<4, 2, true>(rows) : dots_of<4, 1, true>(rows);
  return x_bytes == 2 ? dots_of<4, 2>(rows) : dots_of<4, 1>(rows);
}

// Outputs [n0, n1) of `rows` rows from `row` on.
void fixed_outputs(const FixedCodes& w, const FixedX& x, int64_t row, int64_t rows,
                   const FixedFinish& finish, int64_t n0, int64_t n1) {
  constexpr int kMost = 8;  // streams times rows
  static_assert(streams_of(1) <= kMost && streams_of(kRowsAtOnce) * kRowsAtOnce <= kMost);
  float sums[kMost * kSums];
  const int streams = streams_of(rows);
  const int64_t apart = (n1 - n0 + streams - 1) / streams;
  const DotsFn fn = dots_of(w, x.size, rows);
  for (int64_t at = 0; at < apart; at += kSums) {
    const int64_t some = std::min(kSums, apart - at);
    for (int64_t i = 0; i < some; ++i) {
      int64_t ns[kMost];
      for (int j = 0; j < streams; ++j) ns[j] = std::min(n0 + j * apart + at + i, n1 - 1);
      fn(w, ns, x, row, sums + i);
    }
    for (int j = 0; j < streams; ++j) {
      const int64_t n = n0 + j * apart + at, count = std::min(some, n1 - n);
      for (int64_t i = 0; i < rows; ++i)
        finish_row(finish, row + i, n, count, sums + (j * rows + i) * kSums);
    }
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_AVX2_END

namespace wick::cpu {

size_t fixed_few_scratch(const FixedCodes& w, int64_t rows, int x_bytes) {
  return static_cast<size_t>(rows * FixedX(w, rows, x_bytes, nullptr).row_bytes());
}

void multiply_fixed_few(ThreadPool& pool, const Operand& x, const FixedCodes& w, int x_bytes,
                        const FixedFinish& finish, void* scratch) {
  const FixedX fixed(w, x.rows, x_bytes, scratch);
  for (int64_t t = 0; t < x.rows; ++t) fix_row(x, t, fixed);
  // As many tasks for one thread as for another; the next rows of x find a task's codes in the
  // second cache.
  const int64_t threads = pool.threads();
  const int64_t tasks = (w.rows * w.stride / kTaskBytes + threads) / threads * threads;
  const int64_t grain = std::max<int64_t>(1, (w.rows + tasks - 1) / tasks);
  in_stretches(pool, (w.rows + grain - 1) / grain, [&](auto next) {
    for (int64_t i; (i = next()) >= 0;)
      for (int64_t t = 0; t < x.rows; t += kRowsAtOnce)
        fixed_outputs(w, fixed, t, std::min(kRowsAtOnce, x.rows - t), finish, i * grain,
                      std::min(w.rows, (i + 1) * grain));
  });
}

}  // namespace wick::cpu
#endif
