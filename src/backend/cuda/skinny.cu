// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backend/cuda/mma.cuh"
#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kRows = 16;                         // of y that a block of a narrow product makes
constexpr int kTurnedDepth = 32, kTurnedLd = 24;  // of k at once; of a row in shared memory
constexpr int kWideRows = 8, kWideCols = 8;       // of y: a block's rows, a thread's columns

constexpr int64_t kMostFetched = 1 << 20;  // bytes of parameters that are asked for early

enum class Kind : int { kNarrow, kTurned, kWide };

// One product of the list. m, n, k as in the kernels below; r is the skinny side.
struct Problem {
  Kind kind = Kind::kNarrow;
  const void *a = nullptr, *b = nullptr;
  void* y = nullptr;
  int64_t a_ld = 0, b_ld = 0, y_ld = 0, m = 0, k = 0;
  int r = 0, first_block = 0;
  float alpha = 1.0f;
  bool accumulate = false, by_rank = false;

  template <typename T>
  __device__ const T* a_row(int64_t i) const {
    return static_cast<const T*>(a) + i * a_ld;
  }
  template <typename T>
  __device__ const T* b_row(int64_t i) const {
    return static_cast<const T*>(b) + i * b_ld;
  }
  template <typename T>
  __device__ T* y_row(int64_t i) const {
    return static_cast<T*>(y) + i * y_ld;
  }
};

struct Group {
  static constexpr int kMost = 8;
  Problem at[kMost];
  int count;
};

template <int Tiles>
constexpr int kSharedBytes =
    std::max(kWarps* kTurnedDepth* kTurnedLd* static_cast<int>(sizeof(Bf16)),
             kWarps* kRows * 8 * Tiles * static_cast<int>(sizeof(float)));

// Sums of the warps, each of its part of k, in the order of the warps; put(row, r, sum) by all
// threads.
template <int Tiles, typename Put>
__device__ void sum_warps(const float (&sums)[Tiles][4], float* shared, Put put) {
  constexpr int kCols = 8 * Tiles;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float* own = shared + warp * kRows * kCols;
#pragma unroll
  for (int j = 0; j < Tiles; ++j) {
    own[g * kCols + 8 * j + 2 * t] = sums[j][0];
    own[g * kCols + 8 * j + 2 * t + 1] = sums[j][1];
    own[(g + 8) * kCols + 8 * j + 2 * t] = sums[j][2];
    own[(g + 8) * kCols + 8 * j + 2 * t + 1] = sums[j][3];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kCols; i += kThreads) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared[w * kRows * kCols + i];
    put(i / kCols, i % kCols, total);
  }
}

// y [M, R] = a b. A block makes 16 rows; its warps share out k in pieces of 32. Within a piece a
// lane takes 8 neighbours of k: which k meets which slot of the tensor core does not matter, as
// long as a and b agree.
template <int Tiles>
__device__ void narrow(const Problem& p, int64_t block, char* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t m0 = block * kRows;
  float sums[Tiles][4] = {};
#pragma unroll 2
  for (int64_t k0 = warp * 32; k0 < p.k; k0 += kWarps * 32) {
    const int64_t at = k0 + 8 * t;
    const bool inside = at < p.k;
    Pack<Bf16, 8> low{}, high{};
    if (inside && m0 + g < p.m) low = load<8>(p.a_row<Bf16>(m0 + g) + at);
    if (inside && m0 + g + 8 < p.m) high = load<8>(p.a_row<Bf16>(m0 + g + 8) + at);
#pragma unroll
    for (int j = 0; j < Tiles; ++j) {
      const int col = 8 * j + g;
      float w[8] = {};
      if (inside && col < p.r) {
        if (p.by_rank) {
          const float* row = p.b_row<float>(col) + at;
          const Pack<float, 4> w0 = load<4>(row), w1 = load<4>(row + 4);
#pragma unroll
          for (int i = 0; i < 4; ++i) w[i] = w0.at[i], w[4 + i] = w1.at[i];
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) w[i] = p.b_row<float>(at + i)[col];
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = 4 * half;
        const uint32_t fa[4] = {
            pack_bf16(low.at[i], low.at[i + 1]), pack_bf16(high.at[i], high.at[i + 1]),
            pack_bf16(low.at[i + 2], low.at[i + 3]), pack_bf16(high.at[i + 2], high.at[i + 3])};
        const uint32_t fb[2] = {pack_bf16(w[i], w[i + 1]), pack_bf16(w[i + 2], w[i + 3])};
        mma_bf16(sums[j], fa, fb);
      }
    }
  }
  sum_warps<Tiles>(sums, reinterpret_cast<float*>(shared), [&](int row, int col, float sum) {
    if (m0 + row >= p.m || col >= p.r) return;
    Bf16* at = p.y_row<Bf16>(m0 + row) + col;
    *at = from_f32<Bf16>(p.alpha * sum + (p.accumulate ? to_f32(*at) : 0.0f));
  });
}

// y = aᵀ b. A block makes 16 rows of it, that is 16 columns of a, which its warps read in pieces of
// 32 rows and turn through shared memory.
template <int Tiles>
__device__ void turned(const Problem& p, int64_t block, char* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t m0 = block * kRows;
  Bf16* piece = reinterpret_cast<Bf16*>(shared) + warp * kTurnedDepth * kTurnedLd;
  float sums[Tiles][4] = {};
  Pack<Bf16, 8> left{}, right{}, next_left{}, next_right{};
  auto fetch = [&](int64_t k0, Pack<Bf16, 8>& to_left, Pack<Bf16, 8>& to_right) {
    to_left = to_right = Pack<Bf16, 8>{};
    if (k0 + lane >= p.k) return;
    const Bf16* row = p.a_row<Bf16>(k0 + lane) + m0;
    to_left = load<8>(row);
    if (m0 + 8 < p.m) to_right = load<8>(row + 8);
  };
  fetch(warp * kTurnedDepth, next_left, next_right);
  for (int64_t k0 = warp * kTurnedDepth; k0 < p.k; k0 += kWarps * kTurnedDepth) {
    left = next_left;
    right = next_right;
    fetch(k0 + kWarps * kTurnedDepth, next_left, next_right);
    __syncwarp();
    store(piece + lane * kTurnedLd, left);
    store(piece + lane * kTurnedLd + 8, right);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t fa[4];
      const int matrix = lane / 8;
      load_turned(fa,
                  piece + (16 * half + 8 * (matrix / 2) + lane % 8) * kTurnedLd + 8 * (matrix % 2));
#pragma unroll
      for (int j = 0; j < Tiles; ++j) {
        const int col = 8 * j + g;
        auto value = [&](int i) {
          const int64_t row = k0 + 16 * half + i;
          return row < p.k && col < p.r ? p.b_row<Bf16>(row)[col] : Bf16(0.0f);
        };
        const uint32_t fb[2] = {pack_bf16(value(2 * t), value(2 * t + 1)),
                                pack_bf16(value(2 * t + 8), value(2 * t + 9))};
        mma_bf16(sums[j], fa, fb);
      }
    }
  }
  __syncthreads();
  sum_warps<Tiles>(sums, reinterpret_cast<float*>(shared), [&](int row, int col, float sum) {
    if (m0 + row >= p.m || col >= p.r) return;
    float* at = p.by_rank ? p.y_row<float>(col) + m0 + row : p.y_row<float>(m0 + row) + col;
    *at = p.alpha * sum + (p.accumulate ? *at : 0.0f);
  });
}

// y [M, N] = a b with n in p.k. A block makes 8 rows of kThreads * 8 columns, a thread 8 columns of
// them, 8 ranks at a time.
__device__ void wide(const Problem& p, int64_t block, char* shared) {
  const int64_t across = (p.k + kThreads * kWideCols - 1) / (kThreads * kWideCols);
  const int64_t m0 = block / across * kWideRows;
  const int64_t n0 = (block % across * kThreads + threadIdx.x) * kWideCols;
  float* left = reinterpret_cast<float*>(shared);  // [kWideRows][kSkinny]
  for (int i = threadIdx.x; i < kWideRows * p.r; i += kThreads) {
    const int row = i / p.r, col = i % p.r;
    left[row * kSkinny + col] = m0 + row < p.m ? to_f32(p.a_row<Bf16>(m0 + row)[col]) : 0.0f;
  }
  __syncthreads();
  if (n0 >= p.k) return;
  float sums[kWideRows][kWideCols] = {};
  const bool whole = !p.by_rank && p.r % 4 == 0 && p.b_ld % 4 == 0;
  for (int r0 = 0; r0 < p.r; r0 += 4) {
    float w[4][kWideCols];  // rank, column
    if (p.by_rank) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool inside = r0 + i < p.r;
        const float* row = p.b_row<float>(min(r0 + i, p.r - 1)) + n0;
        const Pack<float, 4> w0 = load<4>(row), w1 = load<4>(row + 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          w[i][j] = inside ? w0.at[j] : 0.0f;
          w[i][4 + j] = inside ? w1.at[j] : 0.0f;
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kWideCols; ++j) {
        const float* row = p.b_row<float>(n0 + j) + r0;
        if (whole) {
          const Pack<float, 4> v = load<4>(row);
#pragma unroll
          for (int i = 0; i < 4; ++i) w[i][j] = v.at[i];
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) w[i][j] = r0 + i < p.r ? row[i] : 0.0f;
        }
      }
    }
#pragma unroll
    for (int row = 0; row < kWideRows; ++row)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float h = r0 + i < p.r ? left[row * kSkinny + r0 + i] : 0.0f;
#pragma unroll
        for (int j = 0; j < kWideCols; ++j) sums[row][j] = fmaf(h, w[i][j], sums[row][j]);
      }
  }
#pragma unroll
  for (int row = 0; row < kWideRows; ++row) {
    if (m0 + row >= p.m) return;
    Bf16* at = p.y_row<Bf16>(m0 + row) + n0;
    Pack<Bf16, 8> old{};
    if (p.accumulate) old = load<8>(at);
#pragma unroll
    for (int j = 0; j < kWideCols; ++j)
      old.at[j] =
          from_f32<Bf16>(p.alpha * sums[row][j] + (p.accumulate ? to_f32(old.at[j]) : 0.0f));
    store(at, old);
  }
}

// Asks for what a block will read of the parameters, which no kernel of the same graph writes: they
// are on their way while the kernel before this one still runs.
__device__ void fetch_parameters(const Problem& p) {
  if (p.kind == Kind::kTurned) return;
  const int64_t rows = p.by_rank ? p.r : p.k, width = (p.by_rank ? p.k : p.r) * 4;
  if (rows * width > kMostFetched) return;
  const int64_t lines = (width + 127) / 128;
  for (int64_t i = threadIdx.x; i < rows * lines; i += kThreads) {
    const char* at =
        reinterpret_cast<const char*>(p.b_row<float>(i / lines)) + min(i % lines * 128, width - 4);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

template <int Tiles>
__global__ void __launch_bounds__(kThreads) skinny_kernel(const __grid_constant__ Group group) {
  __shared__ __align__(16) char shared[kSharedBytes<Tiles>];
  int i = group.count - 1;
  while (group.at[i].first_block > static_cast<int>(blockIdx.x)) --i;
  const Problem& p = group.at[i];
  const int64_t block = static_cast<int>(blockIdx.x) - p.first_block;
  if (block == 0) fetch_parameters(p);
  begin_kernel();
  if (p.kind == Kind::kNarrow)
    narrow<Tiles>(p, block, shared);
  else if (p.kind == Kind::kTurned)
    turned<Tiles>(p, block, shared);
  else
    wide(p, block, shared);
}

// ---- the list

// Bytes that an operand covers: rows of `width`, `stride` apart.
struct Area {
  uintptr_t first;
  int64_t rows, width, stride;

  explicit Area(const Operand& o)
      : first(reinterpret_cast<uintptr_t>(o.data)),
        rows(o.rows),
        width(o.cols * static_cast<int64_t>(dtype_bytes(o.dtype))),
        stride(o.ld * static_cast<int64_t>(dtype_bytes(o.dtype))) {}
  uintptr_t end() const { return first + static_cast<uintptr_t>((rows - 1) * stride + width); }
  bool meets(const Area& other) const {
    if (first >= other.end() || other.first >= end()) return false;
    if (stride != other.stride || stride == 0) return true;
    // Columns of one matrix: apart where neither reaches into the other within a row.
    const auto shift = (static_cast<int64_t>(other.first - first) % stride + stride) % stride;
    return shift < width || shift + other.width > stride;
  }
};

}  // namespace

struct SkinnyList::Impl {
  Group group{};
  int blocks = 0;
  int64_t most_rank = 0;
  std::vector<Area> read, written;
};

SkinnyList::SkinnyList() : impl(std::make_unique<Impl>()) {}
SkinnyList::~SkinnyList() = default;

void flush(const Queue& queue) {
  SkinnyList::Impl& list = *queue.skinny->impl;
  if (list.group.count == 0) return;
  const auto blocks = static_cast<unsigned>(list.blocks);
  if (list.most_rank <= 8)
    launch(queue, skinny_kernel<1>, blocks, kThreads, 0, list.group);
  else if (list.most_rank <= 16)
    launch(queue, skinny_kernel<2>, blocks, kThreads, 0, list.group);
  else if (list.most_rank <= 32)
    launch(queue, skinny_kernel<4>, blocks, kThreads, 0, list.group);
  else
    launch(queue, skinny_kernel<8>, blocks, kThreads, 0, list.group);
  list = SkinnyList::Impl{};
}

namespace {

bool is(const Operand& o, DType dtype) { return o.dtype == dtype && o.form == WeightForm::kRows; }

bool put_on_list(const Queue& queue, Problem p, int64_t blocks, const Operand& a, const Operand& b,
                 const Operand& y) {
  if (blocks > (int64_t{1} << 24)) return false;
  SkinnyList::Impl& list = *queue.skinny->impl;
  const Area areas[] = {Area(a), Area(b), Area(y)};
  auto meets = [](const std::vector<Area>& some, const Area& area) {
    return std::any_of(some.begin(), some.end(), [&](const Area& s) { return s.meets(area); });
  };
  if (list.group.count == Group::kMost || meets(list.written, areas[0]) ||
      meets(list.written, areas[1]) || meets(list.written, areas[2]) || meets(list.read, areas[2]))
    flush(queue);
  p.a = a.data;
  p.b = b.data;
  p.y = y.data;
  p.a_ld = a.ld;
  p.b_ld = b.ld;
  p.y_ld = y.ld;
  p.first_block = list.blocks;
  list.blocks += static_cast<int>(blocks);
  list.most_rank = std::max<int64_t>(list.most_rank, p.kind == Kind::kWide ? 1 : p.r);
  list.group.at[list.group.count++] = p;
  list.read.push_back(areas[0]);
  list.read.push_back(areas[1]);
  list.written.push_back(areas[2]);
  return true;
}

}  // namespace

bool narrow_product(const Queue& queue, float alpha, bool accumulate, bool b_by_rank,
                    const Operand& a, const Operand& b, const Operand& y) {
  if (y.cols > kSkinny || !is(a, DType::kBF16) || !is(b, DType::kF32) || !is(y, DType::kBF16) ||
      !aligned16(a) || (b_by_rank && !aligned16(b)) || a.cols % 8 != 0)
    return false;
  const Problem p{.kind = Kind::kNarrow,
                  .m = a.rows,
                  .k = a.cols,
                  .r = static_cast<int>(y.cols),
                  .alpha = alpha,
                  .accumulate = accumulate,
                  .by_rank = b_by_rank};
  return put_on_list(queue, p, divide_up(a.rows, kRows), a, b, y);
}

bool narrow_product_turned(const Queue& queue, float alpha, bool accumulate, bool y_by_rank,
                           const Operand& a, const Operand& b, const Operand& y) {
  if (b.cols > kSkinny || !is(a, DType::kBF16) || !is(b, DType::kBF16) || !is(y, DType::kF32) ||
      !aligned16(a))
    return false;
  const Problem p{.kind = Kind::kTurned,
                  .m = a.cols,
                  .k = a.rows,
                  .r = static_cast<int>(b.cols),
                  .alpha = alpha,
                  .accumulate = accumulate,
                  .by_rank = y_by_rank};
  return put_on_list(queue, p, divide_up(a.cols, kRows), a, b, y);
}

bool wide_product(const Queue& queue, float alpha, bool accumulate, bool b_by_rank,
                  const Operand& a, const Operand& b, const Operand& y) {
  if (a.cols > kSkinny || !is(a, DType::kBF16) || !is(b, DType::kF32) || !is(y, DType::kBF16) ||
      !aligned16(y) || reinterpret_cast<uintptr_t>(b.data) % 16 != 0 ||
      (b_by_rank && !aligned16(b)))
    return false;
  const Problem p{.kind = Kind::kWide,
                  .m = y.rows,
                  .k = y.cols,
                  .r = static_cast<int>(a.cols),
                  .alpha = alpha,
                  .accumulate = accumulate,
                  .by_rank = b_by_rank};
  const int64_t across = divide_up(y.cols, kThreads * kWideCols);
  return put_on_list(queue, p, across * divide_up(y.rows, kWideRows), a, b, y);
}

}  // namespace wick::cuda
