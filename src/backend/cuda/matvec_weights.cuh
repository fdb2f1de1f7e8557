// SPDX-License-Identifier: Apache-2.0
// Weights of matvec_mma.cu: what a lane reads of chunk c of its row, where an element of x stands
// in a row of shared memory, and the product of the two.
#pragma once

#include "backend/cuda/codes.cuh"
#include "backend/cuda/mma.cuh"

namespace wick::cuda {

// Without a branch, so that loads follow each other closely.
__device__ inline void load16_if(bool wanted, uint4& v, const void* p) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
      "@p ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(p), "r"(static_cast<uint32_t>(wanted)));
}

__device__ inline uint4 load16(const Bf16* p) { return *reinterpret_cast<const uint4*>(p); }

struct PlainWeights {
  static constexpr int kChunk = 32, kAhead = 8, kLeast = 4;
  Rows<const Bf16> w;

  struct Raw {
    uint4 at;
  };
  struct Lane {
    const Bf16* from;
    __device__ void read(int c, bool wanted, Raw& raw) const {
      load16_if(wanted, raw.at, from + c * kChunk);
    }
  };
  __device__ Lane lane(int64_t row, int64_t, int64_t, int t) const { return {w[row] + 8 * t}; }
  static __device__ bool inside(int c, int t, int k) { return c * kChunk + 8 * t < k; }

  static __device__ void put(Bf16* row, int k, const Pack<Bf16, 8>& x) { store(row + k, x); }
  template <int kHalves>
  static __device__ void multiply(const Raw& raw, const Bf16* const (&x)[kHalves], int c, int t,
                                  float (&sums)[2][4]) {
    const int at = c * kChunk + 8 * t;
    const uint4 a = load16(x[0] + at), b = kHalves > 1 ? load16(x[kHalves - 1] + at) : uint4{};
    mma_bf16(sums[0], {a.x, b.x, a.y, b.y}, {raw.at.x, raw.at.y});
    mma_bf16(sums[1], {a.z, b.z, a.w, b.w}, {raw.at.z, raw.at.w});
  }
};

// Two of the bytes or halves of bytes of a word, in bf16, without rounding: 128 + u has u in its
// low bits.
template <int Bits>
__device__ inline uint32_t widen(uint32_t word) {
  constexpr uint32_t kMagic = 0x43004300u;
  uint32_t high, low;
  if constexpr (Bits == 8) {
    high = (word & 0x007f007fu) | kMagic;
    low = (word & 0x00800080u) | kMagic;  // 128, or 256 for negative codes
  } else {
    high = (word & 0x000f000fu) | kMagic;
    low = 0x43084308u;  // 136
  }
  const __nv_bfloat162 d = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&high),
                                   *reinterpret_cast<const __nv_bfloat162*>(&low));
  return *reinterpret_cast<const uint32_t*>(&d);
}

template <int Bits>
struct CodedWeights {
  static constexpr int kChunk = 512 / Bits, kAhead = Bits == 8 ? 4 : 3, kLeast = Bits / 4;
  static constexpr int kWord = kChunk / 4;     // of k in a lane's 16 bytes
  static constexpr int kScales = kChunk / 32;  // of a row, for its sums of 32
  Codes w;

  struct Raw {
    uint4 codes;
    Pack<Bf16, kScales> scales[2];  // of rows 2t and 2t + 1
  };
  struct Lane {
    const uint8_t* from;
    const Bf16* scales[2];
    int shift;
    __device__ void read(int c, bool wanted, Raw& raw) const {
      load16_if(wanted, raw.codes, from + c * 64);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (shift == 5) {
          raw.scales[i] = load<kScales>(scales[i] + c * kScales);
        } else {
#pragma unroll
          for (int j = 0; j < kScales; ++j)
            raw.scales[i].at[j] = scales[i][(c * kChunk + 32 * j) >> shift];
        }
      }
    }
  };
  __device__ Lane lane(int64_t row, int64_t even, int64_t odd, int t) const {
    auto scales = [&](int64_t r) { return reinterpret_cast<const Bf16*>(w.row(r) + w.scales_at); };
    return {w.row(row) + 16 * t, {scales(even), scales(odd)}, w.group_shift};
  }
  static __device__ bool inside(int c, int t, int k) { return c * kChunk + t * kWord < k; }

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
  template <int kHalves>
  static __device__ void multiply(const Raw& raw, const Bf16* const (&x)[kHalves], int c, int t,
                                  float (&sums)[2][4]) {
    // The four lanes of a row turn their words, so that a product stays within 32 of k.
    uint32_t word[4] = {raw.codes.x, raw.codes.y, raw.codes.z, raw.codes.w};
    auto swap = [&](uint32_t& first, uint32_t& second, int mask) {
      const bool up = t & mask;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, up ? first : second, mask);
      (up ? first : second) = got;
    };
    swap(word[0], word[1], 1);
    swap(word[2], word[3], 1);
    swap(word[0], word[2], 2);
    swap(word[1], word[3], 2);
    float part[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      constexpr int kPerGroup = 32 / kWord;
      const int at = c * kChunk + i * kWord / 32 * 32 + 8 * t;
      const uint4 a = load16(x[0] + at), b = kHalves > 1 ? load16(x[kHalves - 1] + at) : uint4{};
      if (i % kPerGroup == 0) part[0] = part[1] = part[2] = part[3] = 0.0f;
      if constexpr (Bits == 4) {
        mma_bf16(part, {a.x, b.x, a.y, b.y}, {widen<4>(word[i]), widen<4>(word[i] >> 8)});
        mma_bf16(part, {a.z, b.z, a.w, b.w}, {widen<4>(word[i] >> 4), widen<4>(word[i] >> 12)});
      } else if (i % 2 == 0) {
        mma_bf16(part, {a.x, b.x, a.y, b.y}, {widen<8>(word[i]), widen<8>(word[i] >> 8)});
      } else {
        mma_bf16(part, {a.z, b.z, a.w, b.w}, {widen<8>(word[i]), widen<8>(word[i] >> 8)});
      }
      if ((i + 1) % kPerGroup == 0) {
        const float even = to_f32(raw.scales[0].at[i / kPerGroup]);
        const float odd = to_f32(raw.scales[1].at[i / kPerGroup]);
        sums[0][0] = fmaf(part[0], even, sums[0][0]);
        sums[0][1] = fmaf(part[1], odd, sums[0][1]);
        sums[0][2] = fmaf(part[2], even, sums[0][2]);
        sums[0][3] = fmaf(part[3], odd, sums[0][3]);
      }
    }
  }
};

}  // namespace wick::cuda
