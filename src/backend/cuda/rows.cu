// SPDX-License-Identifier: Apache-2.0
// embed, gather_rows, copy, segment_sum: rows moved or summed by index. Bound by bytes.
#include "backend/accepts.h"
#include "backend/cuda/weights.cuh"

namespace wick::cuda {
namespace {

const int32_t* ints(const Operand& o) { return o.as<const int32_t>(); }

template <typename Table, typename T, bool kAligned>
struct Embed {
  Table table;
  const int32_t* ids;
  Rows<T> y;
  __device__ void operator()(int64_t t, int c, int left) const {
    float v[kWide];
    read_weights<kAligned>(table, ids[t], c, left, v);
    Wide<T> to;
#pragma unroll
    for (int i = 0; i < kWide; ++i) to.set(i, v[i]);
    store_wide<kAligned>(y[t] + c, left, to);
  }
};

void embed_fwd(const StepArgs& args) {
  const Operand &table = args.in[0], &ids = args.in[1], &y = args.out[0];
  with_weights(table, [&](auto from, bool table_aligned) {
    with_activation(y.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      with_bool(table_aligned && wide_aligned(y), [&](auto aligned) {
        each_wide(queue(args), y.rows, y.cols,
                  Embed<decltype(from), T, aligned()>{from, ints(ids), rows<T>(y)});
      });
    });
  });
}

constexpr int kScatterThreads = 256, kScatterColumns = 8;  // of a thread

// Block (t, s) owns columns of the table's row ids[t], where t is the first token with that id; the
// blocks of its later tokens leave. It looks for those tokens kScatterThreads at a time and adds
// their rows in order.
template <typename T>
__global__ void __launch_bounds__(kScatterThreads)
    embed_bwd_kernel(Rows<const T> dy, const int32_t* ids, int tokens, int cols, int64_t untrained,
                     Rows<float> table) {
  __shared__ uint32_t found[kScatterThreads / 32];
  const int t = blockIdx.x, me = threadIdx.x;
  const int32_t id = ids[t];
  if (id == untrained) return;
  bool seen = false;
  for (int i = me; i < t; i += kScatterThreads) seen |= ids[i] == id;
  if (__syncthreads_or(seen)) return;
  const int first = blockIdx.y * kScatterThreads * kScatterColumns + me;
  float* to = table[id];
  float sum[kScatterColumns];
#pragma unroll
  for (int j = 0; j < kScatterColumns; ++j) {
    const int c = first + j * kScatterThreads;
    sum[j] = c < cols ? to[c] : 0.0f;
  }
  for (int base = t; base < tokens; base += kScatterThreads) {
    const uint32_t mine = __ballot_sync(0xffffffffu, base + me < tokens && ids[base + me] == id);
    if (me % 32 == 0) found[me / 32] = mine;
    __syncthreads();
    for (int w = 0; w < kScatterThreads / 32; ++w)
      for (uint32_t bits = found[w]; bits != 0; bits &= bits - 1) {
        const T* from = dy[base + w * 32 + __ffs(static_cast<int>(bits)) - 1];
#pragma unroll
        for (int j = 0; j < kScatterColumns; ++j) {
          const int c = first + j * kScatterThreads;
          if (c < cols) sum[j] += to_f32(from[c]);
        }
      }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < kScatterColumns; ++j) {
    const int c = first + j * kScatterThreads;
    if (c < cols) to[c] = sum[j];
  }
}

void embed_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &ids = args.in[1], &table = args.out[0];
  if (!args.accumulates(0)) clear_rows(queue(args), table);
  if (dy.elements() == 0) return;
  const dim3 grid(static_cast<unsigned>(dy.rows),
                  static_cast<unsigned>(divide_up(dy.cols, kScatterThreads * kScatterColumns)));
  with_activation(dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    embed_bwd_kernel<<<grid, kScatterThreads, 0, queue(args).stream>>>(
        rows<const T>(dy), ints(ids), static_cast<int>(dy.rows), static_cast<int>(dy.cols),
        attr<EmbedAttr>(*args.step).untrained, rows<float>(table));
  });
}

// y[m] = x[which[m]], or 0
template <typename T, bool kAligned>
struct Gather {
  Rows<const T> x;
  const int32_t* which;
  Rows<T> y;
  __device__ void operator()(int64_t m, int c, int left) const {
    const int32_t from = which[m];
    store_wide<kAligned>(y[m] + c, left,
                         from < 0 ? zero_wide<T>() : load_wide<kAligned>(x[from] + c, left));
  }
};

// y[which[m]] = x[m], where there is such a row
template <typename T, bool kAligned>
struct Scatter {
  Rows<const T> x;
  const int32_t* which;
  Rows<T> y;
  __device__ void operator()(int64_t m, int c, int left) const {
    const int32_t to = which[m];
    if (to >= 0) store_wide<kAligned>(y[to] + c, left, load_wide<kAligned>(x[m] + c, left));
  }
};

template <template <typename, bool> class Move>
void move_rows(const Queue& queue, const Operand& x, const Operand& which, const Operand& y,
               int64_t count) {
  with_activation(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(wide_aligned(x, y), [&](auto aligned) {
      each_wide(queue, count, y.cols,
                Move<T, aligned()>{rows<const T>(x), ints(which), rows<T>(y)});
    });
  });
}

void gather_rows_fwd(const StepArgs& args) {
  move_rows<Gather>(queue(args), args.in[0], args.in[1], args.out[0], args.out[0].rows);
}
void gather_rows_bwd(const StepArgs& args) {
  clear_rows(queue(args), args.out[0]);
  move_rows<Scatter>(queue(args), args.in[0], args.in[1], args.out[0], args.in[0].rows);
}
void copy_fwd(const StepArgs& args) {
  move_rows<Scatter>(queue(args), args.in[0], args.in[1], args.out[0], args.in[0].rows);
}

constexpr int kSegmentThreads = 256;

// A block for each segment looks at every term.
__global__ void __launch_bounds__(kSegmentThreads)
    segment_sum_fwd_kernel(const float* x, const float* weight, const int32_t* segment, int count,
                           float* y) {
  __shared__ float shared[33];
  float sum = 0;
#pragma unroll 4
  for (int m = threadIdx.x; m < count; m += kSegmentThreads)
    if (segment[m] == static_cast<int>(blockIdx.x)) sum = fmaf(weight[m], x[m], sum);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

void segment_sum_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &weight = args.in[1], &segment = args.in[2], &y = args.out[0];
  if (y.elements() == 0) return;
  segment_sum_fwd_kernel<<<static_cast<unsigned>(y.elements()), kSegmentThreads, 0,
                           queue(args).stream>>>(x.as<const float>(), weight.as<const float>(),
                                                 ints(segment), static_cast<int>(x.elements()),
                                                 y.as<float>());
}

__global__ void __launch_bounds__(kSegmentThreads)
    segment_sum_bwd_kernel(const float* dy, const float* weight, const int32_t* segment, int count,
                           float* dx) {
  const int m = static_cast<int>(blockIdx.x * kSegmentThreads + threadIdx.x);
  if (m >= count) return;
  const int s = segment[m];
  dx[m] = s < 0 ? 0.0f : weight[m] * (dy != nullptr ? dy[s] : 1.0f);
}

void segment_sum_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &weight = args.in[1], &segment = args.in[2], &dx = args.out[0];
  const int64_t count = dx.elements();
  if (count == 0) return;
  segment_sum_bwd_kernel<<<static_cast<unsigned>(divide_up(count, kSegmentThreads)),
                           kSegmentThreads, 0, queue(args).stream>>>(
      dy.as<const float>(), weight.as<const float>(), ints(segment), static_cast<int>(count),
      dx.as<float>());
}

}  // namespace

Candidates row_candidates(Arch) {
  constexpr auto kMove = accepts<0b1, 0, 0b1>;
  static constexpr Candidate kTable[] = {
      {Op::kEmbed, Dir::kForward, "embed_fwd", embed_fwd, accepts<0, 0b1, 0b1, 0b1, true>, nullptr},
      {Op::kEmbed, Dir::kBackward, "embed_bwd", embed_bwd, accepts<0b1, 0, 0>, nullptr},
      {Op::kGatherRows, Dir::kForward, "gather_rows_fwd", gather_rows_fwd, kMove, nullptr},
      {Op::kGatherRows, Dir::kBackward, "gather_rows_bwd", gather_rows_bwd, kMove, nullptr},
      {Op::kCopy, Dir::kForward, "copy_fwd", copy_fwd, kMove, nullptr},
      {Op::kSegmentSum, Dir::kForward, "segment_sum_fwd", segment_sum_fwd, nullptr, nullptr},
      {Op::kSegmentSum, Dir::kBackward, "segment_sum_bwd", segment_sum_bwd, nullptr, nullptr},
  };
  return kTable;
}

}  // namespace wick::cuda
