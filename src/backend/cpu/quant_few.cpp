// SPDX-License-Identifier: Apache-2.0
// Products of few rows with quantised tiles. A row of x becomes fixed-point numbers of 15 bits with
// a power of two for each group, exact for all that is within a factor of 64 of the group's largest
// (bf16 has 8 bits); a dot product of them with a group's codes is exact too, and scaled once.
// Multiplied as two bytes, 256 high + low, with AVX-512's dot products of bytes. Narrow
// (LinearAttr), x beside codes of 4 bits is one byte: the two are more than a core gets through
// while memory brings the next codes. Bound by reading the codes from memory.
#include <cmath>
#include <cstring>

#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/quant_product.h"

#if WICK_CPU_BF16
#include "backend/cpu/stretches.h"
#include "base/half.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/addends-inl.h"

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

constexpr int64_t kAhead = 12 << 10;  // bytes of w

// Of a row of x: 32 high bytes and then 32 low ones, or 32 bytes.
constexpr int64_t step_bytes(int bytes) { return 32 * bytes; }

// What is known of a group of x beforehand.
struct Group {
  int32_t start;  // takes back what the codes are too large by: -(8 or 128) Σ x
  float scale;    // of x's numbers
};

struct FewRows {
  const char* x;  // [rows][steps] of step_bytes()
  int64_t row_bytes;
  const Group* groups;  // [rows][groups]
};

// Sums of 16 outputs: of x's high bytes, of its low ones; the same again with the upper four bits
// of each byte of codes, which stay where they are and so count 16 times.
constexpr int kParts = 4;

// One step of 32. Bytes: of a number of x.
template <int Bits, int Bytes, int Rows>
inline void add_step(const char* tile, const char* x, int64_t row_bytes,
                     __m512i sums[Rows][kParts]) {
  constexpr int kHalves = Bits == 8 ? 1 : 2;
  const __m512i lower = _mm512_set1_epi8(0x0f), upper = _mm512_set1_epi8(static_cast<char>(0xf0));
  WICK_UNROLL
  for (int64_t v = 0; v < 8 / kHalves; ++v) {
    const __m512i words = _mm512_load_si512(tile + v * 64);
    const __m512i codes[2] = {Bits == 8 ? words : _mm512_and_si512(words, lower),
                              _mm512_and_si512(words, upper)};
    WICK_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      WICK_UNROLL
      for (int i = 0; i < Rows; ++i) {
        const char* at = x + i * row_bytes + (v * kHalves + half) * 4;
        __m512i* sum = sums[i] + 2 * half;
        int part;
        if (Bytes == 2) {
          std::memcpy(&part, at, 4);
          sum[0] = _mm512_dpbusd_epi32(sum[0], codes[half], _mm512_set1_epi32(part));
        }
        std::memcpy(&part, at + 32 * (Bytes - 1), 4);
        sum[1] = _mm512_dpbusd_epi32(sum[1], codes[half], _mm512_set1_epi32(part));
      }
    }
  }
}

template <int Bytes>
inline __m512i both_bytes(__m512i high, __m512i low) {
  return Bytes == 1 ? low : _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}
template <int Bits, int Bytes>
inline __m512i whole_sum(const __m512i sum[kParts]) {
  const __m512i whole = both_bytes<Bytes>(sum[0], sum[1]);
  if (Bits == 8) return whole;
  return _mm512_add_epi32(whole, _mm512_srai_epi32(both_bytes<Bytes>(sum[2], sum[3]), 4));
}

// One panel: c as Block::c has it. Near: lines are brought near ahead of their use.
template <int Bits, int Bytes, int Rows, bool Near>
void few_rows_panel(const QuantTiles& w, int64_t panel, const FewRows& x, float* c) {
  constexpr int64_t kTile = kTileElements * Bits / 8;
  // Sums of both tiles fit the registers together for one row and two.
  constexpr int kTiles = Rows > 2 ? 1 : 2;
  __m512 total[Rows][2];
  for (int i = 0; i < Rows; ++i) total[i][0] = total[i][1] = _mm512_setzero_ps();
  const char *at = w.data + panel * w.panel_bytes, *xs = x.x;
  const int64_t groups = w.groups();
  int64_t left = w.steps;
  for (int64_t g = 0; g < groups; ++g) {
    const char* scales = at;
    if (Near) _mm_prefetch(at + kAhead, _MM_HINT_T1);
    at += QuantTiles::kScaleBytes;
    const int64_t steps = std::min(w.in_group, left);
    left -= steps;
    for (int tile0 = 0; tile0 < 2; tile0 += kTiles) {
      __m512i sums[kTiles][Rows][kParts];
      WICK_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        WICK_UNROLL
        for (int i = 0; i < Rows; ++i) {
          sums[t][i][0] = sums[t][i][2] = sums[t][i][3] = _mm512_setzero_si512();
          sums[t][i][1] = _mm512_set1_epi32(x.groups[i * groups + g].start);
        }
      }
      for (int64_t s = 0; s < steps; ++s) {
        const char* tile = at + (2 * s + tile0) * kTile;
        WICK_UNROLL
        for (int64_t line = 0; Near && line < kTiles * kTile; line += 64)
          _mm_prefetch(tile + kAhead + line, _MM_HINT_T1);
        WICK_UNROLL
        for (int t = 0; t < kTiles; ++t)
          add_step<Bits, Bytes, Rows>(tile + t * kTile, xs + s * step_bytes(Bytes), x.row_bytes,
                                      sums[t]);
      }
      WICK_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        const __m512 scale = widen_words(
            _mm256_load_si256(reinterpret_cast<const __m256i*>(scales + (tile0 + t) * 32)));
        WICK_UNROLL
        for (int i = 0; i < Rows; ++i)
          total[i][tile0 + t] =
              _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole_sum<Bits, Bytes>(sums[t][i])),
                              _mm512_mul_ps(scale, _mm512_set1_ps(x.groups[i * groups + g].scale)),
                              total[i][tile0 + t]);
      }
    }
    at += 2 * steps * kTile;
    xs += steps * step_bytes(Bytes);
  }
  for (int i = 0; i < Rows; ++i) {
    _mm512_store_ps(c + i * 16, total[i][0]);
    _mm512_store_ps(c + 256 + i * 16, total[i][1]);
  }
}

inline float power_of_two(int biased) {
  const auto bits = static_cast<uint32_t>(biased) << 23;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// 32 numbers times `factor`, rounded, in two vectors of 16.
inline __m512i fixed_point(__m256i words, __m512 factor) {
  return _mm512_cvtps_epi32(_mm512_mul_ps(widen_words(words), factor));
}

inline __m512i row_words(const Operand& x, int64_t row, int64_t step) {
  return _mm512_maskz_loadu_epi16(words_below(x.cols - step * 32),
                                  x.as<uint16_t>() + row * x.ld + step * 32);
}
inline void put_bytes(char* to, __m512i first, __m512i second, __m256i order) {
  const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_shuffle_epi8(bytes, order));
}

// Numbers of x as fixed point with these factors and scales, for the largest of a group.
struct FixedPoint {
  float factor, scale;
};
// Two bytes: the largest becomes 2^13 to 2^14.
inline FixedPoint two_bytes(uint32_t largest) {
  const int exponent = std::max(14, static_cast<int>(largest >> 7));
  return exponent < 255 ? FixedPoint{power_of_two(267 - exponent), power_of_two(exponent - 13)}
                        : FixedPoint{0, std::nanf("")};
}
// One byte: the largest becomes 127.
inline FixedPoint one_byte(uint32_t largest) {
  if (largest >= 0x7f80) return {0, std::nanf("")};
  const uint32_t bits = largest << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  value = std::max(value, 0x1p-100f);
  return {127 / value, value / 127};
}

// Row `row` of x. Codes of 4 bits lie in their words in another order, which x follows.
void prepare_row(const Operand& x, int64_t row, const QuantTiles& w, int bytes, char* to,
                 Group* groups) {
  const __m256i order = _mm256_broadcastsi128_si256(
      w.bits == 8 ? _mm_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
                  : _mm_set_epi8(15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0));
  for (int64_t g = 0, s0 = 0; g < w.groups(); ++g, s0 += w.in_group) {
    const int64_t s1 = std::min(w.steps, s0 + w.in_group);
    // The largest, by the order of bits without the sign: infinities and NaN come last.
    __m512i most = _mm512_setzero_si512();
    for (int64_t s = s0; s < s1; ++s)
      most =
          _mm512_max_epu16(most, _mm512_and_si512(row_words(x, row, s), _mm512_set1_epi16(0x7fff)));
    const __m512i pair = _mm512_max_epu32(_mm512_and_si512(most, _mm512_set1_epi32(0xffff)),
                                          _mm512_srli_epi32(most, 16));
    const uint32_t largest = _mm512_reduce_max_epu32(pair);
    const FixedPoint fixed = bytes == 2 ? two_bytes(largest) : one_byte(largest);
    const __m512 factor = _mm512_set1_ps(fixed.factor);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t s = s0; s < s1; ++s, to += step_bytes(bytes)) {
      const __m512i v = row_words(x, row, s);
      const __m512i a = fixed_point(_mm512_castsi512_si256(v), factor);
      const __m512i b = fixed_point(_mm512_extracti64x4_epi64(v, 1), factor);
      sum = _mm512_add_epi32(sum, _mm512_add_epi32(a, b));
      if (bytes == 2) {
        const __m512i half = _mm512_set1_epi32(128);
        const __m512i high_a = _mm512_srai_epi32(_mm512_add_epi32(a, half), 8);
        const __m512i high_b = _mm512_srai_epi32(_mm512_add_epi32(b, half), 8);
        put_bytes(to, high_a, high_b, order);
      }
      // Cut to a byte, a number is what its high byte leaves.
      put_bytes(to + 32 * (bytes - 1), a, b, order);
    }
    groups[g].start = -_mm512_reduce_add_epi32(sum) * (w.bits == 8 ? 128 : 8);
    groups[g].scale = fixed.scale;
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {
namespace {

constexpr int64_t kTaskBytes = 48 << 10;

// Three rows are computed as four.
int64_t computed_rows(int64_t rows) { return rows == 3 ? 4 : rows; }

// Up to two rows read their lines in order, which a processor may follow by itself; four take one
// tile's after the other's.
template <int Bits, int Bytes>
auto panel_fn(int64_t rows, bool in_order) {
  return rows == 1 && in_order   ? few_rows_panel<Bits, Bytes, 1, false>
         : rows == 2 && in_order ? few_rows_panel<Bits, Bytes, 2, false>
         : rows == 1             ? few_rows_panel<Bits, Bytes, 1, true>
         : rows == 2             ? few_rows_panel<Bits, Bytes, 2, true>
                                 : few_rows_panel<Bits, Bytes, 4, true>;
}

}  // namespace

size_t quant_few_scratch(const QuantTiles& w, int64_t rows) {
  return static_cast<size_t>(computed_rows(rows)) *
         (static_cast<size_t>(w.steps * step_bytes(2)) +
          static_cast<size_t>(w.groups()) * sizeof(Group));
}

void multiply_quant_few(ThreadPool& pool, const Unit& unit, const Operand& x, const QuantTiles& w,
                        bool narrow, const Finish& finish, void* scratch) {
  const int bytes = narrow && w.bits == 4 ? 1 : 2;
  const int64_t rows = computed_rows(x.rows), row_bytes = w.steps * step_bytes(bytes);
  char* data = static_cast<char*>(scratch);
  auto* groups = reinterpret_cast<Group*>(data + rows * row_bytes);
  for (int64_t r = 0; r < x.rows; ++r)
    prepare_row(x, r, w, bytes, data + r * row_bytes, groups + r * w.groups());
  for (int64_t r = x.rows; r < rows; ++r) {
    std::memset(data + r * row_bytes, 0, static_cast<size_t>(row_bytes));
    std::fill_n(groups + r * w.groups(), w.groups(), Group{});
  }
  const FewRows few{data, row_bytes, groups};
  const auto fn = w.bits == 8  ? panel_fn<8, 2>(rows, unit.in_order)
                  : bytes == 2 ? panel_fn<4, 2>(rows, unit.in_order)
                               : panel_fn<4, 1>(rows, unit.in_order);
  const int64_t panels = tile_blocks(w.rows);
  const int64_t grain = std::max<int64_t>(1, kTaskBytes / w.panel_bytes);
  in_stretches(pool, (panels + grain - 1) / grain, [&](auto next) {
    alignas(64) float c[2 * 256];
    PanelAddends addends;
    for (int64_t i; (i = next()) >= 0;)
      for (int64_t p = i * grain; p < std::min(panels, (i + 1) * grain); ++p) {
        fn(w, p, few, c);
        finish_few(c, addends, finish, p);
      }
  });
}

}  // namespace wick::cpu
#endif
