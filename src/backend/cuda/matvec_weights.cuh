// SPDX-License-Identifier: Apache-2.0
// Weights of matvec_mma.cu and matvec_codes.cuh: what a lane takes of rows in shared memory, how x
// stands there, and the product of the two.
//
// With g = lane / 4, t = lane % 4 a lane multiplies what belongs to t in two rows of w. Which
// column of a unit stands in which place of the product does not matter as long as x agrees, so
// x is laid out as the lanes want it.
#pragma once

#include "backend/cuda/codes.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/shared.cuh"

namespace wick::cuda {

__device__ inline uint4 load16(const void* p) { return *reinterpret_cast<const uint4*>(p); }

// Columns of a row of x in shared memory: whole units, with zeros behind its own.
__host__ __device__ constexpr int x_columns(int k) { return (k + 127) / 128 * 128; }
// Elements from a row to the next, which lies in other banks.
__host__ __device__ constexpr int x_ld(int k) { return x_columns(k) + 32; }

// Rows of x in shared memory; of codes also what a unit's bytes count.
struct XRows {
  Bf16* x;
  float* counts;
  int ld, counts_ld;
};
__host__ __device__ constexpr int x_counts_ld(int k) { return x_columns(k) / 64 | 1; }

constexpr int kChunk = 32;  // columns of bf16

struct PlainWeights {
  static constexpr int kChunkBytes = 64;
  // A row may be copied in slices; two rows of a quarter of a warp lie in other banks.
  static constexpr bool kSlices = true;
  static constexpr int kPad = 64, kChains = 2;
  static constexpr int kWarps = 8, kBlocks = 3;  // of a block; of a multiprocessor
  const uint8_t* data;
  int64_t ld_bytes;
  int bytes;  // of a row that are copied

  __device__ const uint8_t* row(int r) const { return data + r * ld_bytes; }

  struct Unit {
    uint4 rows[2];
  };
  // Of chunk c; `rows` begin at chunk `first`.
  template <int kRows>
  __device__ Unit take(const uint8_t* rows, int ld, int first, int c, int lane) const {
    const uint8_t* at = rows + lane / 4 * ld + (c - first) * kChunkBytes + 16 * (lane % 4);
    return {{load16(at), kRows > 8 ? load16(at + 8 * ld) : uint4{}}};
  }

  static __device__ void put(const XRows& to, int r, int k, const Pack<Bf16, 8>& x) {
    store(to.x + r * to.ld + k, x);
  }
  // sums += w x for 16 rows of w and kEights times 8 rows of x, of which x is what the lane takes.
  template <int kEights>
  static __device__ void multiply(const Unit& w, const uint4 (&x)[kEights],
                                  float (&sums)[kEights][kChains][4]) {
    const uint4 &low = w.rows[0], &high = w.rows[1];
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      mma_bf16(sums[n][0], {low.x, high.x, low.y, high.y}, {x[n].x, x[n].y});
      mma_bf16(sums[n][1], {low.z, high.z, low.w, high.w}, {x[n].z, x[n].w});
    }
  }
};

// d = a b + d for bytes, a [16, 32], b [32, 8]: as mma_bf16 with four bytes for each pair.
__device__ inline void mma_bytes(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Codes are multiplied as bytes, and x as two: of 64 of its numbers the largest counts 15 bits, so
// that all within 2^-7 of it keep every bit they have, and the others are off by 2^-16 of it at
// most. Sums of a unit are exact; they are scaled and added in f32. kWide: a group has 64 columns
// or more, so that one scale serves a unit.
template <int Bits, bool kWide>
struct CodedWeights {
  static constexpr int kUnit = 64, kUnitBytes = 8 * Bits;
  // Scales come behind all codes of a row; the words of rows that are read together lie in other
  // banks.
  static constexpr int kPad = !kWide ? 16 : 8 * Bits;
  static constexpr int kWarps = 8, kBlocks = 3;
  Codes w;
  int bytes, groups;

  __device__ const uint8_t* row(int r) const { return w.row(r); }

  // Where four columns from 4q of a unit on stand among the 64 bytes of its high or low parts:
  // 16 t + 8 i + 4 half for lane t, product i, half of its columns.
  static __device__ int place(int q) {
    if constexpr (kWide && Bits == 8) return 16 * (q / 4) + 4 * (q % 4);
    if constexpr (kWide && Bits == 4)
      return 16 * (q / 8 * 2 + q % 4 / 2) + 8 * (q % 2) + 4 * (q / 4 % 2);
    return 16 * (q % 4) + 8 * (q / 8) + 4 * (q / 4 % 2);
  }

  // Eight lanes that have a unit's columns come by here together.
  static __device__ void put(const XRows& to, int r, int k, const Pack<Bf16, 8>& x) {
    uint4 v;
    memcpy(&v, &x, sizeof v);
    const uint32_t lanes = 0xffu << (threadIdx.x & 24), magnitude = 0x7fff7fffu;
    const uint32_t pair = __vmaxu2(__vmaxu2(v.x & magnitude, v.y & magnitude),
                                   __vmaxu2(v.z & magnitude, v.w & magnitude));
    uint32_t most = max(pair & 0xffffu, pair >> 16);
#pragma unroll
    for (int o = 1; o < 8; o *= 2) most = max(most, __shfl_xor_sync(lanes, most, o));
    // 2^15 is above all; one more, because the high byte of the next below it would be 128.
    const int exponent = max(static_cast<int>((most + 1) >> 7), 15);
    const float to_count = __int_as_float((268 - exponent) << 23);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    uint32_t lows[2], highs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t count[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t word = words[2 * i + j / 2];
        const float f = __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000u);
        count[j] = __float_as_uint(fmaf(f, to_count, 12582912.0f));  // in its low bits
      }
      lows[i] = __byte_perm(__byte_perm(count[0], count[1], 0x0040),
                            __byte_perm(count[2], count[3], 0x0040), 0x5410);
#pragma unroll
      for (int j = 0; j < 4; ++j) count[j] += 128;
      highs[i] = __byte_perm(__byte_perm(count[0], count[1], 0x0051),
                             __byte_perm(count[2], count[3], 0x0051), 0x5410);
    }
    auto* unit = reinterpret_cast<uint8_t*>(to.x + r * to.ld + k / 64 * 64);
    const int q = k % 64 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<uint32_t*>(unit + place(q + i)) = highs[i];
      *reinterpret_cast<uint32_t*>(unit + 64 + place(q + i)) = lows[i];
    }
    // Codes of 4 bits are multiplied as the high halves of bytes.
    const float one = __int_as_float((exponent - 14) << 23);
    const float counts = exponent >= 255 ? __int_as_float(0x7fc00000) : Bits == 4 ? one / 16 : one;
    if (k % 64 == 0) to.counts[r * to.counts_ld + k / 64] = counts;
  }

  // Column 2r of a product is the high bytes of row r of x, the next the low ones.
  template <int kTiles>
  struct X {
    const Bf16* rows[kTiles];
    const float* counts[kTiles];
    __device__ X(const XRows& x, int m, int lane) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        rows[n] = x.x + min(4 * n + lane / 8, m - 1) * x.ld + lane / 4 % 2 * 32 + 8 * (lane % 4);
        counts[n] = x.counts + min(4 * n + lane % 4, m - 1) * x.counts_ld;
      }
    }
  };

  // Of row t of each four rows of x with both rows of w.
  template <int kTiles>
  struct Sums {
    float at[kTiles][2] = {};
  };

  // What a lane multiplies of a row, for two products: half 0, half 1.
  struct Words {
    uint32_t at[2][2];
  };
  static __device__ Words take(const uint8_t* row, int t) {
    auto word = [&](int at) { return *reinterpret_cast<const uint32_t*>(row + at + 4 * t); };
    if constexpr (Bits == 8) {
      if constexpr (kWide) {
        const uint4 v = load16(row + 16 * t);
        return {{{v.x, v.y}, {v.z, v.w}}};
      }
      return {{{word(0), word(16)}, {word(32), word(48)}}};
    } else {
      uint2 v;
      if constexpr (kWide)
        v = *reinterpret_cast<const uint2*>(row + 8 * t);
      else
        v = {word(0), word(16)};
      return {
          {{high_halves(v.x << 4), high_halves(v.x)}, {high_halves(v.y << 4), high_halves(v.y)}}};
    }
  }
  // 16 (u - 8) for u in the high half of each byte.
  static __device__ uint32_t high_halves(uint32_t word) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(word), "r"(0xf0f0f0f0u), "r"(0x80808080u));
    return d;
  }

  // sums += w x over units [begin, end) of the rows at `low` and `high`. A few units are under way
  // at once, also the last ones: a unit alone takes as long as four.
  template <int kRows, int kTiles>
  __device__ void multiply(const uint8_t* low, const uint8_t* high, const X<kTiles>& x, int begin,
                           int end, int t, Sums<kTiles>& sums) const {
    constexpr int kAtOnce = kTiles == 1 ? 4 : kTiles == 2 ? 2 : 1;
    int c = begin;
#pragma unroll 1
    for (; c + kAtOnce <= end; c += kAtOnce)
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        multiply_unit<kRows, kTiles>(low, high, x, c + i, true, t, sums);
    if (c >= end) return;
#pragma unroll
    for (int i = 0; i < kAtOnce - 1; ++i)
      multiply_unit<kRows, kTiles>(low, high, x, min(c + i, end - 1), c + i < end, t, sums);
  }
  // The same over unit c, or as if it were zeros.
  template <int kRows, int kTiles>
  __device__ void multiply_unit(const uint8_t* low, const uint8_t* high, const X<kTiles>& x, int c,
                                bool real, int t, Sums<kTiles>& sums) const {
    const Words a = take(low + c * kUnitBytes, t);
    const Words b = kRows > 8 ? take(high + c * kUnitBytes, t) : Words{};
    const uint32_t first[4] = {a.at[0][0], b.at[0][0], a.at[0][1], b.at[0][1]};
    const uint32_t second[4] = {a.at[1][0], b.at[1][0], a.at[1][1], b.at[1][1]};
    const Scales of_low = scales(low + w.scales_at, c);
    const Scales of_high = kRows > 8 ? scales(high + w.scales_at, c) : Scales{};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4 v = load16(x.rows[n] + c * kUnit);
      const float count = real ? x.counts[n][c] : 0.0f;
      auto add = [&](const int(&d)[4], float s0, float s1) {
        sums.at[n][0] = fmaf(__int2float_rn(d[0] * 256 + d[1]), s0 * count, sums.at[n][0]);
        if constexpr (kRows > 8)
          sums.at[n][1] = fmaf(__int2float_rn(d[2] * 256 + d[3]), s1 * count, sums.at[n][1]);
      };
      int d[4] = {};
      mma_bytes(d, first, v.x, v.y);
      if constexpr (!kWide) {
        add(d, of_low.first, of_high.first);
        d[0] = d[1] = d[2] = d[3] = 0;
      }
      mma_bytes(d, second, v.z, v.w);
      add(d, of_low.second, of_high.second);
    }
  }

  // Where those of unit c begin among a row's scales.
  __device__ int scales_before(int c) const {
    return kWide ? 2 * (c * kUnit >> w.group_shift) : 4 * c;
  }
  // Of the two groups of unit c of a row, or twice that of its one.
  struct Scales {
    float first, second;
  };
  __device__ Scales scales(const uint8_t* of_row, int c) const {
    if constexpr (kWide) {
      const float one = to_f32(reinterpret_cast<const Bf16*>(of_row)[c * kUnit >> w.group_shift]);
      return {one, one};
    } else {
      // Behind the last group may be anything, which its sum of zeros must not meet.
      const uint32_t both = reinterpret_cast<const uint32_t*>(of_row)[c];
      return {__uint_as_float(both << 16),
              2 * c + 1 < groups ? __uint_as_float(both & 0xffff0000u) : 0.0f};
    }
  }
};

}  // namespace wick::cuda
