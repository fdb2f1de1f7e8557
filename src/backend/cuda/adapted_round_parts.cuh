// SPDX-License-Identifier: Apache-2.0
// Pieces of adapted_round.cuh: what a block of a cluster sends to the other, and products.
#pragma once

#include "backend/cuda/bulk.cuh"

namespace wick::cuda {

// barrier_wait() for what another block of the cluster did.
__device__ inline void barrier_wait_cluster(uint32_t barrier, int parity) {
#ifdef WICK_WGMMA
  asm volatile(
      "{\n.reg .pred p;\nagain:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\nbra again;\ndone:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}
// The same address in a block of the cluster.
__device__ inline uint32_t address_in(uint32_t address, int block) {
#ifdef WICK_WGMMA
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;\n" : "+r"(address) : "r"(block));
#endif
  return address;
}
// 16 bytes into another block's memory, which count for its barrier.
__device__ inline void send(uint32_t to, const uint32_t (&x)[4], uint32_t barrier) {
#ifdef WICK_WGMMA
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, "
      "[%5];\n" ::"r"(to),
      "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(barrier)
      : "memory");
#endif
}
// Sums as operands of an instruction, by tiles of 8 columns.
#define WICK_TILE(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define WICK_TILES_2 WICK_TILE(0), WICK_TILE(1)
#define WICK_TILES_8                                                                  \
  WICK_TILE(0), WICK_TILE(1), WICK_TILE(2), WICK_TILE(3), WICK_TILE(4), WICK_TILE(5), \
      WICK_TILE(6), WICK_TILE(7)
#define WICK_TILES_16                                                                    \
  WICK_TILES_8, WICK_TILE(8), WICK_TILE(9), WICK_TILE(10), WICK_TILE(11), WICK_TILE(12), \
      WICK_TILE(13), WICK_TILE(14), WICK_TILE(15)
#define WICK_TILES_24                                                                       \
  WICK_TILES_16, WICK_TILE(16), WICK_TILE(17), WICK_TILE(18), WICK_TILE(19), WICK_TILE(20), \
      WICK_TILE(21), WICK_TILE(22), WICK_TILE(23)
#define WICK_TILES_9 WICK_TILES_8, WICK_TILE(8)
#define WICK_TILES_17 WICK_TILES_16, WICK_TILE(16)

// d [64, 64] += left [64, 8] * right in tf32: left from registers as mma_tf32() has it, right a
// panel of rows of 32 numbers.
__device__ __forceinline__ void multiply_tf32(float (&d)[8][4], const uint32_t (&left)[4],
                                              uint64_t right) {
#ifdef WICK_WGMMA
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" WICK_NUMBERS_24
               "}, {%32,%33,%34,%35}, %36, 1, 1, 1;\n"
               : WICK_TILES_8
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
#endif
}

// d [64, Cols] += left * right, both panels, for the numbers of columns that bulk.cuh has not.
template <int Cols>
__device__ __forceinline__ void multiply_more(float (&d)[Cols / 8][4], uint64_t left,
                                              uint64_t right) {
#ifdef WICK_WGMMA
#define WICK_MULTIPLY(cols, numbers, tiles, l, r)                                                \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #cols "k16.f32.bf16.bf16 {" numbers "}, %" #l \
               ", %" #r ", 1, 1, 1, 0, 0;\n"                                                     \
               : tiles                                                                           \
               : "l"(left), "l"(right))
  if constexpr (Cols == 8)
    WICK_MULTIPLY(8, "%0,%1,%2,%3", WICK_TILE(0), 4, 5);
  else if constexpr (Cols == 16)
    WICK_MULTIPLY(16, WICK_NUMBERS_0, WICK_TILES_2, 8, 9);
  else if constexpr (Cols == 72)
    WICK_MULTIPLY(72, WICK_NUMBERS_24 ",%32,%33,%34,%35", WICK_TILES_9, 36, 37);
  else if constexpr (Cols == 136)
    WICK_MULTIPLY(136, WICK_NUMBERS_56 ",%64,%65,%66,%67", WICK_TILES_17, 68, 69);
  else if constexpr (Cols == 192)
    WICK_MULTIPLY(192, WICK_NUMBERS_88, WICK_TILES_24, 96, 97);
  else
    multiply_panels<Cols>(d, left, right, true);
#undef WICK_MULTIPLY
#endif
}

#undef WICK_TILE

// A place in a ring of slots.
struct RingPlace {
  int slots, slot = 0, phase = 0;
  __device__ explicit RingPlace(int n) : slots(n) {}
  __device__ void next() {
    if (++slot == slots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

}  // namespace wick::cuda
