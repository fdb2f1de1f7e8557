// SPDX-License-Identifier: Apache-2.0
// A product by warp groups whose tiles come by the bulk copy engine, and exponentials as they leave
// it. A block is a producer and two groups of 64 rows of a tile of 128 x 256; blocks stay and take
// tile after tile, those of the same words next to each other.
#include <cuda.h>

#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/head_exp.h"

namespace wick::cuda {
namespace {

constexpr int kTileRows = 128, kTileWords = kHeadExpWords, kDepth = 64, kStages = 4;
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

// ---- barriers in shared memory

__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
#ifdef WICK_WGMMA
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
#endif
}
__device__ inline void barrier_expect(uint32_t barrier, int bytes) {
#ifdef WICK_WGMMA
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
__device__ inline void barrier_arrive(uint32_t barrier) {
#ifdef WICK_WGMMA
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
#endif
}
// Until the phase of that parity is over.
__device__ inline void barrier_wait(uint32_t barrier, int parity) {
#ifdef WICK_WGMMA
  asm volatile(
      "{\n.reg .pred p;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\nbra again;\ndone:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}
__device__ inline void barriers_ready() {
#ifdef WICK_WGMMA
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
#endif
  group_publish();
}

// Registers go from the producer to those who multiply.
__device__ inline void give_registers() {
#ifdef WICK_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 24;\n");
#endif
}
__device__ inline void take_registers() {
#ifdef WICK_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n");
#endif
}

// A box of the map from (column, row) on into shared memory.
__device__ inline void copy_box(uint32_t to, const CUtensorMap& map, int column, int row,
                                uint32_t barrier) {
#ifdef WICK_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];\n" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
#endif
}

// d [64, 256] (+)= left * right, both panels whose rows are theirs (attention_wgmma.cuh).
__device__ __forceinline__ void group_multiply_256(float (&d)[32][4], uint64_t left, uint64_t right,
                                                   bool add) {
#ifdef WICK_WGMMA
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
      "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
      "}, %128, %129, p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
        "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]),
        "+f"(d[11][3]), "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]),
        "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]),
        "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]),
        "+f"(d[15][2]), "+f"(d[15][3]), "+f"(d[16][0]), "+f"(d[16][1]), "+f"(d[16][2]),
        "+f"(d[16][3]), "+f"(d[17][0]), "+f"(d[17][1]), "+f"(d[17][2]), "+f"(d[17][3]),
        "+f"(d[18][0]), "+f"(d[18][1]), "+f"(d[18][2]), "+f"(d[18][3]), "+f"(d[19][0]),
        "+f"(d[19][1]), "+f"(d[19][2]), "+f"(d[19][3]), "+f"(d[20][0]), "+f"(d[20][1]),
        "+f"(d[20][2]), "+f"(d[20][3]), "+f"(d[21][0]), "+f"(d[21][1]), "+f"(d[21][2]),
        "+f"(d[21][3]), "+f"(d[22][0]), "+f"(d[22][1]), "+f"(d[22][2]), "+f"(d[22][3]),
        "+f"(d[23][0]), "+f"(d[23][1]), "+f"(d[23][2]), "+f"(d[23][3]), "+f"(d[24][0]),
        "+f"(d[24][1]), "+f"(d[24][2]), "+f"(d[24][3]), "+f"(d[25][0]), "+f"(d[25][1]),
        "+f"(d[25][2]), "+f"(d[25][3]), "+f"(d[26][0]), "+f"(d[26][1]), "+f"(d[26][2]),
        "+f"(d[26][3]), "+f"(d[27][0]), "+f"(d[27][1]), "+f"(d[27][2]), "+f"(d[27][3]),
        "+f"(d[28][0]), "+f"(d[28][1]), "+f"(d[28][2]), "+f"(d[28][3]), "+f"(d[29][0]),
        "+f"(d[29][1]), "+f"(d[29][2]), "+f"(d[29][3]), "+f"(d[30][0]), "+f"(d[30][1]),
        "+f"(d[30][2]), "+f"(d[30][3]), "+f"(d[31][0]), "+f"(d[31][1]), "+f"(d[31][2]),
        "+f"(d[31][3])
      : "l"(left), "l"(right), "r"(int{add}));
#endif
}

// Of four lanes' four words: lane t gets word t of each, in the order of the lanes.
__device__ __forceinline__ void turn_quad(uint32_t (&w)[4], int t) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {  // pairs of lanes, single words
    const uint32_t given = t % 2 ? w[i] : w[i + 1];
    const uint32_t got = __shfl_xor_sync(0xffffffffu, given, 1);
    (t % 2 ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // pairs of pairs, words two apart
    const uint32_t given = t / 2 ? w[i] : w[i + 2];
    const uint32_t got = __shfl_xor_sync(0xffffffffu, given, 2);
    (t / 2 ? w[i] : w[i + 2]) = got;
  }
}

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
          group_multiply_256(d, rows_at + 2 * i, words_at + 2 * i, k > 0 || i > 0);
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

// ---- maps for the copy engine

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    return nullptr;
  return reinterpret_cast<Encode>(function);
}

// Boxes of `rows` rows of kDepth columns, as panels.
bool make_map(const Operand& o, int rows, CUtensorMap& map) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return false;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(o.cols), static_cast<cuuint64_t>(o.rows)};
  const cuuint64_t stride = static_cast<cuuint64_t>(o.ld) * 2;
  const cuuint32_t box[2] = {kDepth, static_cast<cuuint32_t>(rows)}, steps[2] = {1, 1};
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, o.data, sizes, &stride, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

bool head_exponentials(const Queue& queue, const HeadExp& h) {
  const int64_t across = divide_up(h.w.rows, kTileWords);
  CUtensorMap left, right;
  if (queue.arch != Arch::kSm90 || h.x.dtype != DType::kBF16 || h.w.dtype != DType::kBF16 ||
      h.x.cols % 8 != 0 || h.x.rows < kFewRows || across > kHeadExpParts || !aligned16(h.x) ||
      !aligned16(h.w) || !aligned16(h.factors) || !make_map(h.x, kTileRows, left) ||
      !make_map(h.w, kTileWords, right) || !allow_shared(head_exp_kernel, kSharedBytes))
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
