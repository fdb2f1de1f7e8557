// SPDX-License-Identifier: Apache-2.0
// Products whose tiles come by the bulk copy engine (sm_90a): barriers, copies, wide products of
// warp groups, and the maps that the engine reads.
#pragma once

#include <cuda.h>

#include "backend/cuda/attention_wgmma.cuh"

namespace wick::cuda {

constexpr int kBulkDepth = 64;  // of a stage: rows of a panel are 128 bytes

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

// Registers of sums as operands of an instruction: their numbers, by eights, and themselves, two
// tiles of them from tile `j` on.
#define WICK_NUMBERS_0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define WICK_NUMBERS_8 WICK_NUMBERS_0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WICK_NUMBERS_16 WICK_NUMBERS_8 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define WICK_NUMBERS_24 WICK_NUMBERS_16 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define WICK_NUMBERS_32 WICK_NUMBERS_24 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define WICK_NUMBERS_40 WICK_NUMBERS_32 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define WICK_NUMBERS_48 WICK_NUMBERS_40 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define WICK_NUMBERS_56 WICK_NUMBERS_48 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define WICK_NUMBERS_64 WICK_NUMBERS_56 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define WICK_NUMBERS_72 WICK_NUMBERS_64 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define WICK_NUMBERS_80 WICK_NUMBERS_72 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define WICK_NUMBERS_88 WICK_NUMBERS_80 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define WICK_NUMBERS_96 WICK_NUMBERS_88 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define WICK_NUMBERS_104 WICK_NUMBERS_96 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define WICK_NUMBERS_112 WICK_NUMBERS_104 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define WICK_NUMBERS_120 WICK_NUMBERS_112 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define WICK_SUMS(j)                                                               \
  "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]), "+f"(d[(j) + 1][0]), \
      "+f"(d[(j) + 1][1]), "+f"(d[(j) + 1][2]), "+f"(d[(j) + 1][3])
#define WICK_SUMS_64 WICK_SUMS(0), WICK_SUMS(2), WICK_SUMS(4), WICK_SUMS(6)
#define WICK_SUMS_80 WICK_SUMS_64, WICK_SUMS(8)
#define WICK_SUMS_96 WICK_SUMS_80, WICK_SUMS(10)
#define WICK_SUMS_104 WICK_SUMS_96, "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3])
#define WICK_SUMS_112 WICK_SUMS_96, WICK_SUMS(12)
#define WICK_SUMS_128 WICK_SUMS_112, WICK_SUMS(14)
#define WICK_SUMS_144 WICK_SUMS_128, WICK_SUMS(16)
#define WICK_SUMS_160 WICK_SUMS_144, WICK_SUMS(18)
#define WICK_SUMS_176 WICK_SUMS_160, WICK_SUMS(20)
#define WICK_SUMS_256 \
  WICK_SUMS_176, WICK_SUMS(22), WICK_SUMS(24), WICK_SUMS(26), WICK_SUMS(28), WICK_SUMS(30)
// `cols` columns; then the numbers of the operands behind the sums.
#define WICK_MULTIPLY(cols, numbers, sums, l, r, a, t, u)                                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #a                                       \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #cols "k16.f32.bf16.bf16 {" numbers \
               "}, %" #l ", %" #r ", p, 1, 1, %" #u ", %" #t ";\n}\n"                        \
               : sums                                                                        \
               : "l"(left), "l"(right), "r"(int{add}), "n"(int{Turned}), "n"(int{LeftTurned}))

// d [64, Cols] (+)= left * right, both panels (attention_wgmma.cuh). Rows of the right ones are the
// columns or, Turned, the depth: then panels of 64 columns follow each other (turned_panels_at).
// LeftTurned: rows of the left panel are the depth, and the sums' rows its columns.
template <int Cols, bool Turned = false, bool LeftTurned = false>
__device__ __forceinline__ void multiply_panels(float (&d)[Cols / 8][4], uint64_t left,
                                                uint64_t right, bool add) {
#ifdef WICK_WGMMA
  if constexpr (Cols == 64)
    WICK_MULTIPLY(64, WICK_NUMBERS_24, WICK_SUMS_64, 32, 33, 34, 35, 36);
  else if constexpr (Cols == 80)
    WICK_MULTIPLY(80, WICK_NUMBERS_32, WICK_SUMS_80, 40, 41, 42, 43, 44);
  else if constexpr (Cols == 96)
    WICK_MULTIPLY(96, WICK_NUMBERS_40, WICK_SUMS_96, 48, 49, 50, 51, 52);
  else if constexpr (Cols == 104)
    WICK_MULTIPLY(104, WICK_NUMBERS_40 ",%48,%49,%50,%51", WICK_SUMS_104, 52, 53, 54, 55, 56);
  else if constexpr (Cols == 112)
    WICK_MULTIPLY(112, WICK_NUMBERS_48, WICK_SUMS_112, 56, 57, 58, 59, 60);
  else if constexpr (Cols == 128)
    WICK_MULTIPLY(128, WICK_NUMBERS_56, WICK_SUMS_128, 64, 65, 66, 67, 68);
  else if constexpr (Cols == 144)
    WICK_MULTIPLY(144, WICK_NUMBERS_64, WICK_SUMS_144, 72, 73, 74, 75, 76);
  else if constexpr (Cols == 160)
    WICK_MULTIPLY(160, WICK_NUMBERS_72, WICK_SUMS_160, 80, 81, 82, 83, 84);
  else if constexpr (Cols == 176)
    WICK_MULTIPLY(176, WICK_NUMBERS_80, WICK_SUMS_176, 88, 89, 90, 91, 92);
  else if constexpr (Cols == 256)
    WICK_MULTIPLY(256, WICK_NUMBERS_120, WICK_SUMS_256, 128, 129, 130, 131, 132);
  else
    static_assert(Cols == 0, "no such product is written out");
#endif
}
#undef WICK_MULTIPLY
#undef WICK_SUMS

// Describes panels of 64 rows and 64 columns side by side, whose rows are the depth of a right
// operand: p is advanced by 16 rows for the next 16 of it.
__device__ inline uint64_t turned_panels_at(uint32_t address) {
  constexpr uint64_t kPanel = 64 * 128 >> 4, kEightRows = 1024 >> 4, kSwizzle128 = 1;
  return (address & 0x3ffff) >> 4 | kPanel << 16 | kEightRows << 32 | kSwizzle128 << 62;
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

// ---- maps for the copy engine

using Encode = decltype(&cuTensorMapEncodeTiled);

inline Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    return nullptr;
  return reinterpret_cast<Encode>(function);
}

// Boxes of `rows` rows of `cols` columns, as panels: rows of 128 bytes, of bf16 or f32.
inline bool make_map(const Operand& o, int cols, int rows, CUtensorMap& map) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return false;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(o.cols), static_cast<cuuint64_t>(o.rows)};
  const cuuint64_t stride = static_cast<cuuint64_t>(o.ld) * dtype_bytes(o.dtype);
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(cols), static_cast<cuuint32_t>(rows)},
                   steps[2] = {1, 1};
  const auto type =
      o.dtype == DType::kF32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode(&map, type, 2, o.data, sizes, &stride, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace wick::cuda
