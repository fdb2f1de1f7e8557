// SPDX-License-Identifier: Apache-2.0
// Weights of matvec_mma.cu: what a lane takes of rows in shared memory, where an element of x
// stands in its row there, and the product of the two.
//
// A chunk is 32 columns. With g = lane / 4, t = lane % 4 a lane multiplies what belongs to t in
// rows g and g + 8.
#pragma once

#include "backend/cuda/codes.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/shared.cuh"

namespace wick::cuda {

constexpr int kChunk = 32;

__device__ inline uint4 load16(const void* p) { return *reinterpret_cast<const uint4*>(p); }

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

  static __device__ void put(Bf16* row, int k, const Pack<Bf16, 8>& x) { store(row + k, x); }
  // sums += w x for 16 rows of w and kEights times 8 rows of x, of which x has the lane's.
  template <int kRows, int kEights>
  static __device__ void multiply(const Unit& w, const Bf16* const (&x)[kEights], int c, int t,
                                  float (&sums)[kEights][kChains][4]) {
    const uint4 &low = w.rows[0], &high = w.rows[1];
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const uint4 b = load16(x[n] + c * kChunk + 8 * t);
      mma_bf16(sums[n][0], {low.x, high.x, low.y, high.y}, {b.x, b.y});
      mma_bf16(sums[n][1], {low.z, high.z, low.w, high.w}, {b.z, b.w});
    }
  }
};

// Two of the bytes or halves of bytes of a word, in bf16, without rounding: 128 + u has u in its
// low bits.
template <int Bits>
__device__ inline uint32_t widen(uint32_t word) {
  auto pick = [&](auto mask) {  // (word & mask) | 128 in bf16, twice
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(word), "n"(mask()), "r"(0x43004300u));
    return d;
  };
  using Low = std::integral_constant<uint32_t, Bits == 4 ? 0x000f000fu : 0x007f007fu>;
  using Sign = std::integral_constant<uint32_t, 0x00800080u>;
  const uint32_t high = pick(Low{});
  // Less 136, or 128, or 256 for negative codes of 8 bits.
  const uint32_t low = Bits == 4 ? 0x43084308u : pick(Sign{});
  const __nv_bfloat162 d = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&high),
                                   *reinterpret_cast<const __nv_bfloat162*>(&low));
  return *reinterpret_cast<const uint32_t*>(&d);
}

// Codes are multiplied as they are, bf16 holding them exactly, and the sum of 32 is scaled in f32.
template <int Bits>
struct CodedWeights {
  static constexpr int kChunkBytes = 4 * Bits;
  // Scales come behind all codes of a row; its words of 8 rows lie in other banks.
  static constexpr bool kSlices = false;
  static constexpr int kPad = 16, kChains = 1;
  static constexpr int kWarps = 16, kBlocks = 2;
  Codes w;
  int bytes;

  __device__ const uint8_t* row(int r) const { return w.row(r); }

  struct Unit {
    uint32_t words[2][Bits / 4];  // word t of each 16 bytes of rows g and g + 8
    float scales[2];
  };
  template <int kRows>
  __device__ Unit take(const uint8_t* rows, int ld, int, int c, int lane) const {
    const int g = lane / 4, t = lane % 4;
    Unit u{};
#pragma unroll
    for (int half = 0; half < kRows / 8; ++half) {
      const uint8_t* row = rows + (8 * half + g) * ld;
#pragma unroll
      for (int i = 0; i < Bits / 4; ++i)
        u.words[half][i] =
            *reinterpret_cast<const uint32_t*>(row + c * kChunkBytes + 16 * i + 4 * t);
      const auto* scales = reinterpret_cast<const Bf16*>(row + w.scales_at);
      u.scales[half] = to_f32(scales[c * kChunk >> w.group_shift]);
    }
    return u;
  }

  // Lane t multiplies four of every 16, the first and third of them as one pair, and has eight of
  // 32 together.
  static __device__ void put(Bf16* row, int k, const Pack<Bf16, 8>& x) {
    uint4 v;
    memcpy(&v, &x, sizeof v);
    Bf16* to = row + k / 32 * 32 + k / 16 % 2 * 4 + k % 16 / 4 * 8;
    *reinterpret_cast<uint2*>(to) = {__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632)};
    *reinterpret_cast<uint2*>(to + 8) = {__byte_perm(v.z, v.w, 0x5410),
                                         __byte_perm(v.z, v.w, 0x7632)};
  }
  template <int kRows, int kEights>
  static __device__ void multiply(const Unit& u, const Bf16* const (&x)[kEights], int c, int t,
                                  float (&sums)[kEights][kChains][4]) {
    auto wide = [&](int half, int i, int shift) {
      return half < kRows / 8 ? widen<Bits>(u.words[half][i] >> shift) : 0u;
    };
    // The first 16 columns, then the others: of 4 bits they are the halves of the same bytes.
    constexpr int kLast = Bits / 4 - 1, kShift = Bits == 4 ? 4 : 0;
    const uint32_t first[4] = {wide(0, 0, 0), wide(1, 0, 0), wide(0, 0, 8), wide(1, 0, 8)};
    const uint32_t others[4] = {wide(0, kLast, kShift), wide(1, kLast, kShift),
                                wide(0, kLast, kShift + 8), wide(1, kLast, kShift + 8)};
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const uint4 b = load16(x[n] + c * kChunk + 8 * t);
      float part[4] = {};
      mma_bf16(part, first, {b.x, b.y});
      mma_bf16(part, others, {b.z, b.w});
#pragma unroll
      for (int e = 0; e < 2 * (kRows / 8); ++e)
        sums[n][0][e] = fmaf(part[e], u.scales[e / 2], sums[n][0][e]);
    }
  }
};

}  // namespace wick::cuda
