// SPDX-License-Identifier: Apache-2.0
// The kernel of skinny.h. Ranks of narrow and turned products are at most 8 * Tiles, those of wide
// ones kSkinny. Tall: a block makes more rows of a narrow product, and none goes on with it.
#pragma once

#include "backend/cuda/skinny_wide.cuh"

namespace wick::cuda {

// Tiles of 16 rows of a narrow product, a block's.
template <int Tiles, bool Tall>
constexpr int kNarrowTiles = !Tall        ? 1
                             : Tiles <= 2 ? 4
                                          : 2;

template <int Tiles, bool Tall>
constexpr int kSkinnyBlocks = Tall         ? 2
                              : Tiles <= 2 ? 3
                              : Tiles == 4 ? 2
                                           : 1;

template <int Tiles, bool Tall>
__global__ void __launch_bounds__(kSkinnyThreads, kSkinnyBlocks<Tiles, Tall>)
    skinny_kernel(const __grid_constant__ SkinnyGroup group) {
  using S = SkinnyShape<Tiles>;
  extern __shared__ __align__(16) char shared[];
  int i = group.count - 1;
  while (group.at[i].first_block > static_cast<int>(blockIdx.x)) --i;
  const SkinnyProblem& p = group.at[i];
  const int block = static_cast<int>(blockIdx.x) - p.first_block;
  if (p.kind != SkinnyKind::kTurned) ask_for(p.b, p.b_bytes, block, p.blocks);
  begin_kernel();
  // One of splits and parts is 1.
  const int shares = p.splits * p.parts, share = block % shares, m0 = block / shares * p.tile_rows;
  if (m0 >= p.m) return;
  auto* floats = reinterpret_cast<float*>(shared);
  if (p.kind == SkinnyKind::kTurned) return turned<Tiles>(p, m0, share, shared);
  if (p.kind == SkinnyKind::kWide)
    return wide_rows(group.spread[p.first_spread], p, m0, share, floats);
  float* tile = floats + S::kWarpSums;
  narrow<Tiles, kNarrowTiles<Tiles, Tall>>(p, m0, p.splits > 1 ? share : 0,
                                           p.splits > 1 ? 0 : share, floats, tile);
  if constexpr (!Tall) {
    if (p.spreads == 0) return;
    __syncthreads();
    spread_rows<Tiles, 1>(group, p, m0, share, tile, tile + 64 * S::kLd);
  }
}

}  // namespace wick::cuda
