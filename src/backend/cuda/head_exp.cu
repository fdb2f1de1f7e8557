// SPDX-License-Identifier: Apache-2.0
// A product by warp groups whose tiles come by the bulk copy engine, and exponentials as they leave
// it. A block is a producer and two groups of 64 rows of a tile of 128 x 256; blocks stay and take
// tile after tile, those of the same words next to each other.
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/head_exp.h"

namespace wick::cuda {
namespace {

constexpr int kTileRows = 128, kTileWords = kHeadExpWords, kDepth = kBulkDepth, kStages = 4;
constexpr int kGroups = 2, kThreads = 128 * (kGroups + 1);
constexpr int kLeftBytes = kTileRows * kDepth * 2, kRightBytes = kTileWords * kDepth * 2;
constexpr size_t kSharedBytes = kStages * (kLeftBytes + kRightBytes) + 2 * kStages * 8 + 1024;
constexpr int64_t kFewRows = 32;  // a tile would be almost empty
constexpr float kLog2E = 1.44269504f;
constexpr float kMostExponent = 115.0f;  // of 2: sums of such stay finite

struct Args {
  int rows, words, depth;
  Rows<Bf16> factors;
  int first_word;
  const int32_t* targets;
  const float* most;
  float *parts, *chosen;
};

// Exponentials of a group's 64 x 256 logits. Requires: m0 and n0 are the group's.
template <bool kSpecial>
__device__ __forceinline__ void leave(const Args& a, const float (&d)[32][4], int m0, int n0) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = m0 + 16 * warp + 8 * half + g;
    const bool real = row < a.rows;
    const float shift = real ? -kLog2E * a.most[row] : 0.0f;
    const int hit = real && kSpecial ? a.targets[row] - a.first_word - n0 : -1;
    Bf16* to = a.factors[real ? row : 0] + n0 + 8 * t;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
      uint32_t made[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float e[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float z = d[j + c][2 * half + i];
          asm("ex2.approx.ftz.f32 %0, %1;"
              : "=f"(e[i])
              : "f"(fminf(fmaf(z, kLog2E, shift), kMostExponent)));
          if constexpr (kSpecial) {
            const int col = 8 * (j + c) + 2 * t + i;
            if (col == hit) a.chosen[row] = z;
            if (col == hit || n0 + col >= a.words) e[i] = 0.0f;
          }
          sum += e[i];
        }
        made[c] = pack2(e[0], e[1]);
      }
      turn_quad(made, t);
      if (real && (!kSpecial || n0 + 8 * (j + t) < a.words))
        *reinterpret_cast<uint4*>(to + 8 * j) = {made[0], made[1], made[2], made[3]};
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (real && t == 0) a.parts[static_cast<int64_t>(row) * kHeadExpParts + n0 / kTileWords] = sum;
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    head_exp_kernel(const __grid_constant__ CUtensorMap left,
                    const __grid_constant__ CUtensorMap right, const Args a) {
  extern __shared__ unsigned char memory[];
  begin_kernel();
  const uint32_t base = (shared_address(memory) + 1023) / 1024 * 1024;
  const uint32_t barriers = base + kStages * (kLeftBytes + kRightBytes);
  auto full = [&](int stage) { return barriers + 8 * stage; };
  auto empty = [&](int stage) { return barriers + 8 * (kStages + stage); };
  auto left_at = [&](int stage) { return base + stage * (kLeftBytes + kRightBytes); };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), 4 * kGroups);
    }
    barriers_ready();
  }
  __syncthreads();
  const int down = (a.rows + kTileRows - 1) / kTileRows;
  const int tiles = down * ((a.words + kTileWords - 1) / kTileWords);
  const int steps = (a.depth + kDepth - 1) / kDepth;
  int stage = 0, phase = 0;
  auto next = [&] {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  };
  if (threadIdx.x < 128) {
    give_registers();
    if (threadIdx.x == 0)
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
        for (int k = 0; k < steps; ++k, next()) {
          barrier_wait(empty(stage), phase ^ 1);
          barrier_expect(full(stage), kLeftBytes + kRightBytes);
          copy_box(left_at(stage), left, k * kDepth, tile % down * kTileRows, full(stage));
          copy_box(left_at(stage) + kLeftBytes, right, k * kDepth, tile / down * kTileWords,
                   full(stage));
        }
  } else {
    take_registers();
    const int group = threadIdx.x / 128 - 1;
    const bool first = threadIdx.x % 32 == 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      float d[32][4] = {};
      int before = 0;
#pragma unroll 1
      for (int k = 0; k < steps; ++k, next()) {
        barrier_wait(full(stage), phase);
        const uint64_t rows_at = panel_at(left_at(stage) + group * 64 * kDepth * 2);
        const uint64_t words_at = panel_at(left_at(stage) + kLeftBytes);
        group_begin();
#pragma unroll
        for (int i = 0; i < kDepth / 16; ++i)
          multiply_panels<256>(d, rows_at + 2 * i, words_at + 2 * i, k > 0 || i > 0);
        group_commit();
        if (k > 0) {
          group_wait<1>();
          if (first) barrier_arrive(empty(before));
        }
        before = stage;
      }
      group_wait<0>();
      group_done(d);
      if (first) barrier_arrive(empty(before));
      const int m0 = tile % down * kTileRows + 64 * group, n0 = tile / down * kTileWords;
      const int row =
          m0 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 16;
      const int hit = row < a.rows ? a.targets[row] - a.first_word - n0 : -1;
      if (n0 + kTileWords > a.words || __any_sync(0xffffffffu, hit >= 0 && hit < kTileWords))
        leave<true>(a, d, m0, n0);
      else
        leave<false>(a, d, m0, n0);
    }
  }
}

// A warp per row: what the tiles' sums add to that of the words before.
__global__ void __launch_bounds__(128)
    head_exp_sum_kernel(const float* parts, int rows, int tiles, float* others) {
  begin_kernel();
  const int row = static_cast<int>(blockIdx.x) * 4 + static_cast<int>(threadIdx.x) / 32;
  if (row >= rows) return;
  float sum = 0;
  for (int i = threadIdx.x % 32; i < tiles; i += 32)
    sum += parts[static_cast<int64_t>(row) * kHeadExpParts + i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) others[row] += sum;
}

}  // namespace

bool head_exponentials_serve(const Queue& queue, const Operand& x, const Operand& w, int64_t rows) {
  CUtensorMap map;
  return queue.arch == Arch::kSm90 && x.dtype == DType::kBF16 && w.dtype == DType::kBF16 &&
         x.cols % 8 == 0 && rows >= kFewRows && aligned16(x) && aligned16(w) &&
         make_map(x, kDepth, kTileRows, map) && make_map(w, kDepth, kTileWords, map) &&
         allow_shared(head_exp_kernel, kSharedBytes);
}

int64_t head_exp_words(int64_t m, int64_t v, int64_t block_rows, int64_t words, int sms) {
  const int64_t fewest = words / kTileWords;
  const int64_t down = divide_up(std::min(m, block_rows), kTileRows),
                most = std::min<int64_t>(kHeadExpParts, block_rows / kTileRows * fewest / down);
  const int64_t all = divide_up(std::max<int64_t>(v - words, 0), kTileWords);
  int64_t best = fewest, least = 0;
  for (int64_t across = fewest; across <= most; ++across) {
    int64_t cost = 0;  // in rounds
    for (int64_t done = 0; done < all; done += across) {
      cost += 1;  // the block's other launches
      for (int64_t r0 = 0; r0 < m; r0 += block_rows)
        cost += divide_up(
            divide_up(std::min(block_rows, m - r0), kTileRows) * std::min(across, all - done), sms);
    }
    if (least == 0 || cost < least) {
      best = across;
      least = cost;
    }
  }
  return best * kTileWords;
}

bool head_exponentials(const Queue& queue, const HeadExp& h) {
  const int64_t across = divide_up(h.w.rows, kTileWords);
  CUtensorMap left, right;
  if (!head_exponentials_serve(queue, h.x, h.w, h.x.rows) || across > kHeadExpParts ||
      !aligned16(h.factors) || !make_map(h.x, kDepth, kTileRows, left) ||
      !make_map(h.w, kDepth, kTileWords, right))
    return false;
  const Args a{.rows = static_cast<int>(h.x.rows),
               .words = static_cast<int>(h.w.rows),
               .depth = static_cast<int>(h.x.cols),
               .factors = rows<Bf16>(h.factors),
               .first_word = static_cast<int>(h.first_word),
               .targets = h.targets,
               .most = h.most,
               .parts = h.parts,
               .chosen = h.chosen};
  const int64_t tiles = divide_up(h.x.rows, kTileRows) * across;
  launch(queue, head_exp_kernel, static_cast<unsigned>(std::min<int64_t>(tiles, queue.sms)),
         kThreads, kSharedBytes, left, right, a);
  launch(queue, head_exp_sum_kernel, static_cast<unsigned>(divide_up(h.x.rows, 4)), 128, 0,
         static_cast<const float*>(h.parts), a.rows, static_cast<int>(across), h.others);
  return true;
}

}  // namespace wick::cuda
