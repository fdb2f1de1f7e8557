// SPDX-License-Identifier: Apache-2.0
// Wide products of skinny.cuh: blocks keep what they need of b in registers and walk down the rows.
#pragma once

#include "backend/cuda/skinny.cuh"

namespace wick::cuda {

// Floats from a row of a block's h to the next: rows two apart begin in the same bank.
__host__ __device__ constexpr int wide_ld(int ranks) {
  const int groups = (ranks + 15) / 16;
  return 16 * (groups + (groups % 2 == 0));
}

// What a lane needs of b for 16 ranks and 32 columns: ranks `rank` to `rank` + 3 of the columns
// `col` to `col` + 3.
__device__ __forceinline__ void load_b(uint32_t (&fb)[4][4], const Spread& s, int col, int rank) {
  const float* from =
      s.b + static_cast<int64_t>(col) * s.column_step + static_cast<int64_t>(rank) * s.rank_step;
#pragma unroll
  for (int outer = 0; outer < 4; ++outer) {
    Pack<float, 4> at{};
    if (s.vectors && s.column_step == 1) {
      if (col < s.n && rank + outer < s.r)
        at = load<4>(from + static_cast<int64_t>(outer) * s.rank_step);
#pragma unroll
      for (int j = 0; j < 4; ++j) fb[j][outer] = to_tf32(at.at[j]);
    } else {
      if (s.vectors) {
        if (col < s.n && rank < s.r)
          at = load<4>(from + static_cast<int64_t>(outer) * s.column_step);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (col + outer < s.n && rank + i < s.r)
            at.at[i] = from[static_cast<int64_t>(outer) * s.column_step +
                            static_cast<int64_t>(i) * s.rank_step];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) fb[outer][i] = to_tf32(at.at[i]);
    }
  }
}

// y [M, N] (+)= alpha * h b for rows [m0, m0 + tile_rows) and every parts-th 256 columns. A
// warp makes 32 columns. Which column meets which slot of the tensor core does not matter: column n
// of tile j is 4 n + j, so that a lane ends up with eight neighbours of a row.
__device__ __forceinline__ void wide_rows(const Spread& s, const SkinnyProblem& p, int m0, int part,
                                          float* h) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int ld = wide_ld(p.r), padded = (p.r + 15) / 16 * 16, groups = padded / 16;
#pragma unroll 1
  for (int e = threadIdx.x; e < p.tile_rows * padded / 8; e += kSkinnyThreads) {
    const int row = e / (padded / 8), rank = e % (padded / 8) * 8;
    const Bf16* from = p.a_row<Bf16>(m0 + row) + rank;
    const int real = m0 + row < p.m ? p.r - rank : 0;
    float x[8];
    if (p.b_aligned && real >= 8) {
      const Pack<Bf16, 8> at = load<8>(from);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = to_f32(at.at[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = i < real ? to_f32(from[i]) : 0.0f;
    }
    float* to = h + row * ld + rank;
    store<4>(to, Pack<float, 4>{x[0], x[1], x[2], x[3]});
    store<4>(to + 4, Pack<float, 4>{x[4], x[5], x[6], x[7]});
  }
  __syncthreads();
#pragma unroll 1
  for (int chunk = part; chunk < p.chunks; chunk += p.parts) {
    const int c0 = chunk * kSpreadCols + 32 * warp;
    const bool inside = c0 + 8 * t < s.n;
    uint32_t fb[4][4];
    load_b(fb, s, c0 + 4 * g, 4 * t);
#pragma unroll 1
    for (int r0 = 0; r0 < p.tile_rows && m0 + r0 < p.m; r0 += 32) {
      Bf16* y = s.y + static_cast<int64_t>(m0 + r0 + g) * s.y_ld + c0 + 8 * t;
      const int64_t step = static_cast<int64_t>(8) * s.y_ld;
      const int rows = inside ? p.m - m0 - r0 - g : 0;
      Eight old[4] = {};
      if (s.accumulate) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (8 * i < rows) old[i] = *reinterpret_cast<const Eight*>(y + i * step);
      }
      float d[2][4][4] = {};
#pragma unroll 1
      for (int group = 0; group < groups; ++group) {
        if (groups > 1) load_b(fb, s, c0 + 4 * g, 16 * group + 4 * t);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* from = h + (r0 + 16 * half + g) * ld + 16 * group + 4 * t;
          const Pack<float, 4> low = load<4>(from), high = load<4>(from + 8 * ld);
#pragma unroll
          for (int k = 0; k < 4; k += 2) {
            const uint32_t fa[4] = {__float_as_uint(low.at[k]), __float_as_uint(high.at[k]),
                                    __float_as_uint(low.at[k + 1]),
                                    __float_as_uint(high.at[k + 1])};
#pragma unroll
            for (int j = 0; j < 4; ++j) mma_tf32(d[half][j], fa, {fb[j][k], fb[j][k + 1]});
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Eight now;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int j = 2 * c % 4, slot = 2 * (i % 2) + c / 2;
          const float2 was = unpack_bf16(old[i].at[c]);
          now.at[c] = pack_bf16(fmaf(s.alpha, d[i / 2][j][slot], was.x),
                                fmaf(s.alpha, d[i / 2][j + 1][slot], was.y));
        }
        if (8 * i < rows) *reinterpret_cast<Eight*>(y + i * step) = now;
      }
    }
  }
}

}  // namespace wick::cuda
