// SPDX-License-Identifier: Apache-2.0
// Eight columns per thread: how kernels that are bound by bytes walk over rows.
//
// A row is cut into stretches of kWide columns. Where they all are whole and lie aligned
// (wide_aligned) a stretch moves in accesses of 16 bytes, else element by element. Which thread
// owns which column does not depend on that, so neither do the bits.
#pragma once

#include "backend/cuda/shared.cuh"

namespace wick::cuda {

constexpr int kWide = 8;

template <typename T>
struct Wide {
  static constexpr int kPart = 16 / static_cast<int>(sizeof(T));
  Pack<T, kPart> part[kWide / kPart];

  __device__ T& at(int i) { return part[i / kPart].at[i % kPart]; }
  __device__ float operator[](int i) const { return to_f32(part[i / kPart].at[i % kPart]); }
  __device__ void set(int i, float x) { at(i) = from_f32<T>(x); }
};

template <typename T>
__device__ inline Wide<std::remove_const_t<T>> zero_wide() {
  Wide<std::remove_const_t<T>> v;
#pragma unroll
  for (int i = 0; i < kWide; ++i) v.set(i, 0.0f);
  return v;
}

// `left` columns of the row from p on, at least one; zeros beyond.
template <bool kAligned, typename T>
__device__ inline Wide<std::remove_const_t<T>> load_wide(const T* p, int left) {
  using V = std::remove_const_t<T>;
  Wide<V> v;
  if constexpr (kAligned) {
#pragma unroll
    for (int i = 0; i < kWide / Wide<V>::kPart; ++i)
      v.part[i] = load<Wide<V>::kPart>(p + i * Wide<V>::kPart);
  } else {
#pragma unroll
    for (int i = 0; i < kWide; ++i) v.at(i) = i < left ? p[i] : from_f32<V>(0.0f);
  }
  return v;
}

template <bool kAligned, typename T>
__device__ inline void store_wide(T* p, int left, const Wide<T>& v) {
  if constexpr (kAligned) {
#pragma unroll
    for (int i = 0; i < kWide / Wide<T>::kPart; ++i) store(p + i * Wide<T>::kPart, v.part[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      if (i < left) p[i] = v.part[i / Wide<T>::kPart].at[i % Wide<T>::kPart];
  }
}

// Whether rows consist of whole stretches that start at multiples of 16 bytes. For launches, as
// aligned16().
inline bool wide_aligned(const Operand& o) {
  if (!o) return true;
  const int64_t size = static_cast<int64_t>(dtype_bytes(o.dtype));
  return o.cols % kWide == 0 && reinterpret_cast<uintptr_t>(o.data) % 16 == 0 &&
         (o.rows <= 1 || o.ld * size % 16 == 0);
}
template <typename... Operands>
bool wide_aligned(const Operand& o, const Operands&... others) {
  return wide_aligned(o) && wide_aligned(others...);
}

template <typename F>
void with_bool(bool value, F&& f) {
  if (value)
    f(std::true_type{});
  else
    f(std::false_type{});
}

// An operand that the step may be too short to name.
inline Operand operand_at(std::span<const Operand> operands, size_t i) {
  return i < operands.size() ? operands[i] : Operand{};
}

constexpr int kEachThreads = 128;

template <typename F>
__global__ void __launch_bounds__(kEachThreads)
    each_wide_kernel(uint32_t count, uint32_t per_row, int cols, F f) {
  begin_kernel();
  const uint32_t i = blockIdx.x * kEachThreads + threadIdx.x;
  if (i >= count) return;
  const uint32_t row = i / per_row;
  const int col = static_cast<int>((i - row * per_row) * kWide);
  f(static_cast<int64_t>(row), col, cols - col);
}

// f(row, col, left) on the device for every stretch of a matrix: `left` columns from col on.
// Requires: fewer than 2^32 stretches.
template <typename F>
void each_wide(const Queue& queue, int64_t rows, int64_t cols, const F& f) {
  const int64_t per_row = divide_up(cols, kWide), count = rows * per_row;
  if (count == 0) return;
  prefer_shared(each_wide_kernel<F>);
  launch(queue, each_wide_kernel<F>, static_cast<unsigned>(divide_up(count, kEachThreads)),
         kEachThreads, 0, static_cast<uint32_t>(count), static_cast<uint32_t>(per_row),
         static_cast<int>(cols), f);
}

// For each_wide: to = from, rounded.
template <typename T, bool kAligned>
struct Narrow {
  Rows<const float> from;
  Rows<T> to;
  __device__ void operator()(int64_t m, int c, int left) const {
    const Wide<float> v = load_wide<kAligned>(from[m] + c, left);
    Wide<T> narrow;
#pragma unroll
    for (int i = 0; i < kWide; ++i) narrow.set(i, v[i]);
    store_wide<kAligned>(to[m] + c, left, narrow);
  }
};

// Zeros, as one node of a graph.
inline void clear_rows(const Queue& queue, const Operand& o) {
  if (o.elements() == 0) return;
  const size_t size = dtype_bytes(o.dtype), width = static_cast<size_t>(o.cols) * size;
  if (o.rows == 1 || o.ld == o.cols)
    cudaMemsetAsync(o.data, 0, width * static_cast<size_t>(o.rows), queue.stream);
  else
    cudaMemset2DAsync(o.data, static_cast<size_t>(o.ld) * size, 0, width,
                      static_cast<size_t>(o.rows), queue.stream);
}

}  // namespace wick::cuda
