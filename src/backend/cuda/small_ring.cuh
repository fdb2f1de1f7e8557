// SPDX-License-Identifier: Apache-2.0
// What products in tiles of 64 x 64 share: a block makes one tile; a warp asks the copy engine for
// panels, as many at once as shared memory holds, and a group of four multiplies them in the order
// of the depth. Panels of weights are asked for before the kernel before is done.
#pragma once

#include "backend/cuda/bulk.cuh"
#include "backend/cuda/mma.cuh"

namespace wick::cuda {

constexpr int kSmallSide = 64;
constexpr int kSmallPanel = kSmallSide * 128, kSmallStage = 2 * kSmallPanel;  // bytes
constexpr int kSmallMostStages = 13;
constexpr int kSmallMultipliers = 128, kSmallThreads = kSmallMultipliers + 32;
using Eight = Pack<uint32_t, 4>;  // neighbours of a row

// Turned: the right operand is [K, N].
template <bool Turned>
struct SmallRing {
  static constexpr int bytes(int stages) { return stages * (kSmallStage + 16) + 1024; }

  uint32_t base, barriers;
  int stages, steps, m0, n0;
  int stage = 0, phase = 0;

  // The tile of this block, of `rows` rows by `depth` of depth.
  __device__ SmallRing(unsigned char* memory, int ring_stages, int rows, int depth)
      : base((shared_address(memory) + 1023) / 1024 * 1024),
        barriers(base + ring_stages * kSmallStage),
        stages(ring_stages),
        steps((depth + kBulkDepth - 1) / kBulkDepth) {
    const int down = (rows + kSmallSide - 1) / kSmallSide;
    m0 = static_cast<int>(blockIdx.x) % down * kSmallSide;
    n0 = static_cast<int>(blockIdx.x) / down * kSmallSide;
  }
  __device__ uint32_t full(int i) const { return barriers + 8 * i; }
  __device__ uint32_t empty(int i) const { return barriers + 8 * (stages + i); }
  __device__ uint32_t left_at(int i) const { return base + i * kSmallStage; }
  __device__ uint32_t right_at(int i) const { return left_at(i) + kSmallPanel; }
  __device__ void next() {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ bool is_producer() const { return threadIdx.x == kSmallMultipliers; }

  __device__ void copy_right(const CUtensorMap& right, int k, int to) const {
    if constexpr (Turned)
      copy_box(right_at(to), right, n0, k * kBulkDepth, full(to));
    else
      copy_box(right_at(to), right, k * kBulkDepth, n0, full(to));
  }
  // By the producer: the first before, the second after the kernel before is done.
  __device__ void begin(const CUtensorMap& right) const {
    for (int i = 0; i < stages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), kSmallMultipliers / 32);
    }
    barriers_ready();
    for (int k = 0; k < min(stages, steps); ++k) {
      barrier_expect(full(k), kSmallStage);
      copy_right(right, k, k);
    }
  }
  __device__ void produce(const CUtensorMap& left, const CUtensorMap& right) {
    const int early = min(stages, steps);
    for (int k = 0; k < early; ++k) copy_box(left_at(k), left, k * kBulkDepth, m0, full(k));
    for (int k = early; k < steps; ++k, next()) {
      barrier_wait(empty(stage), phase);
      barrier_expect(full(stage), kSmallStage);
      copy_box(left_at(stage), left, k * kBulkDepth, m0, full(stage));
      copy_right(right, k, stage);
    }
  }
  // By the others: d = the tile; more(k, i, left) multiplies 16 of the depth with something else.
  template <typename More>
  __device__ __forceinline__ void multiply(float (&d)[8][4], More more) {
    int before = 0;
#pragma unroll 1
    for (int k = 0; k < steps; ++k, next()) {
      barrier_wait(full(stage), phase);
      const uint64_t rows_at = panel_at(left_at(stage)), cols_at = panel_at(right_at(stage));
      group_begin();
#pragma unroll
      for (int i = 0; i < kBulkDepth / 16; ++i) {
        multiply_panels<kSmallSide, Turned>(d, rows_at + 2 * i, cols_at + (Turned ? 128 : 2) * i,
                                            true);
        more(k, i, rows_at + 2 * i);
      }
      group_commit();
      if (k > 0) {
        group_wait<1>();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty(before));
      }
      before = stage;
    }
    group_wait<0>();
    group_done(d);
  }
};

}  // namespace wick::cuda
