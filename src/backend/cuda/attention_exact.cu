// SPDX-License-Identifier: Apache-2.0
// attention with f32 products in any type and size: tiles of R rows and R keys in shared memory as
// f32, one thread per few scores, then one thread per row and few columns. Bound by reading shared
// memory. Forward makes the scores twice, for the maximum and then for the sums, which is what
// frees the bits from where tiles begin.
#include "backend/cuda/attention.h"

namespace wick::cuda {
namespace {

constexpr int kThreads = 256;

// Tiles of R rows in f32, rows an odd number of elements apart so that a column lies in all banks.
template <int R_, int Dim>
struct Tile {
  static constexpr int R = R_, kScores = R / 16, kPerRow = kThreads / R, kCols = Dim / kPerRow;
  static constexpr int kProbLd = R + 1;
};

// Rows [first, first + R) of `from`, zeros outside [low, high).
template <int R, typename T>
__device__ void load_tile(float* to, Rows<const T> from, int col, int dim, int ld, int first,
                          int low, int high) {
  for (int i = threadIdx.x; i < R * dim; i += kThreads) {
    const int r = i / dim, c = i % dim, row = first + r;
    to[r * ld + c] = row >= low && row < high ? to_f32(from[row][col + c]) : 0.0f;
  }
}

// The dot products of rows ty + 16 i of a and tx + 16 j of b.
template <int N>
__device__ void dots(const float* a, const float* b, int dim, int ld, float (&sums)[N][N]) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j) sums[i][j] = 0.0f;
#pragma unroll 4
  for (int c = 0; c < dim; ++c) {
    float x[N], y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = a[(ty + 16 * i) * ld + c];
      y[i] = b[(tx + 16 * i) * ld + c];
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int j = 0; j < N; ++j) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
  }
}

template <class C, typename T>
__global__ void __launch_bounds__(kThreads) fwd_exact(AttentionFwd<T> a) {
  extern __shared__ float shared[];
  constexpr int R = C::R, N = C::kScores;
  __shared__ int lows[R], highs[R], hull[2];
  const int dim = a.head_dim, ld = dim | 1;
  float *q = shared, *kv = q + R * ld, *p = kv + R * ld;
  const int head = blockIdx.y, t0 = blockIdx.x * R;
  const int col = head * dim, kv_col = head / (a.heads / a.kv_heads) * dim;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  if (threadIdx.x < 32) {
    const int r = threadIdx.x;
    KeyRange range{0, 0};
    if (r < R && t0 + r < a.tokens) range = visible(a, t0 + r);
    if (range.empty()) range = {INT32_MAX, 0};
    if (r < R) {
      lows[r] = range.low;
      highs[r] = range.high;
    }
    const int low = __reduce_min_sync(0xffffffffu, range.low);
    const int high = __reduce_max_sync(0xffffffffu, range.high);
    if (r == 0) {
      hull[0] = low;
      hull[1] = high;
    }
  }
  load_tile<R>(q, a.q, col, dim, ld, t0, 0, a.tokens);
  __syncthreads();
  const int first = hull[0], stop = hull[1];

  float most[N], score[N][N];
#pragma unroll
  for (int i = 0; i < N; ++i) most[i] = -INFINITY;
  auto sees = [&](int i, int key) { return key >= lows[ty + 16 * i] && key < highs[ty + 16 * i]; };
  for (int j0 = first; j0 < stop; j0 += R) {
    load_tile<R>(kv, a.k, kv_col, dim, ld, j0, first, stop);
    __syncthreads();
    dots(q, kv, dim, ld, score);
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (sees(i, j0 + tx + 16 * j)) most[i] = fmaxf(most[i], a.scale * score[i][j]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    for (int o = 8; o > 0; o >>= 1)
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], o));

  const int row = threadIdx.x / C::kPerRow, c0 = threadIdx.x % C::kPerRow;
  float sums[C::kCols] = {}, total = 0.0f;
  for (int j0 = first; j0 < stop; j0 += R) {
    load_tile<R>(kv, a.k, kv_col, dim, ld, j0, first, stop);
    __syncthreads();
    dots(q, kv, dim, ld, score);
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int j = 0; j < N; ++j)
        p[(ty + 16 * i) * C::kProbLd + tx + 16 * j] =
            sees(i, j0 + tx + 16 * j) ? expf(a.scale * score[i][j] - most[i]) : 0.0f;
    __syncthreads();
    load_tile<R>(kv, a.v, kv_col, dim, ld, j0, first, stop);
    __syncthreads();
    for (int j = 0; j < R; ++j) {
      const float x = p[row * C::kProbLd + j];
      total += x;
#pragma unroll
      for (int i = 0; i < C::kCols; ++i) {
        const int c = c0 + i * C::kPerRow;
        if (c < dim) sums[i] = fmaf(x, kv[j * ld + c], sums[i]);
      }
    }
    __syncthreads();
  }
  // The maxima lie with the threads of the scores; p carries them to those of the rows.
  if (tx == 0)
#pragma unroll
    for (int i = 0; i < N; ++i) p[ty + 16 * i] = most[i];
  __syncthreads();
  const int t = t0 + row;
  if (t >= a.tokens) return;
  const bool empty = lows[row] >= highs[row];
  const float divisor = empty ? 1.0f : total;
#pragma unroll
  for (int i = 0; i < C::kCols; ++i) {
    const int c = c0 + i * C::kPerRow;
    if (c < dim) a.y[t][col + c] = from_f32<T>(sums[i] / divisor);
  }
  if (c0 == 0 && a.lse) a.lse[t][head] = empty ? -INFINITY : p[row] + logf(total);
}

// What both directions of backward share: the tiles, and p and ds of R rows and R keys.
template <class C, typename T>
struct BwdTiles {
  static constexpr int R = C::R, N = C::kScores;
  const AttentionBwd<T>& a;
  int dim, ld;
  float *q, *dy, *k, *v, *p, *ds;

  __device__ BwdTiles(const AttentionBwd<T>& args, float* shared) : a(args) {
    dim = a.head_dim;
    ld = dim | 1;
    q = shared;
    dy = q + R * ld;
    k = dy + R * ld;
    v = k + R * ld;
    p = v + R * ld;
    ds = p + R * C::kProbLd;
  }
  __device__ void load_rows(int t0, int head) const {
    load_tile<R>(q, a.q, head * dim, dim, ld, t0, 0, a.tokens);
    load_tile<R>(dy, a.dy, head * dim, dim, ld, t0, 0, a.tokens);
  }
  __device__ void load_keys(int j0, int kv) const {
    load_tile<R>(k, a.k, kv * dim, dim, ld, j0, 0, a.tokens);
    load_tile<R>(v, a.v, kv * dim, dim, ld, j0, 0, a.tokens);
  }
  __device__ void soften(int t0, int head, int j0) const {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float s[N][N], dp[N][N];
    dots(q, k, dim, ld, s);
    dots(dy, v, dim, ld, dp);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int t = t0 + ty + 16 * i;
      const bool real = t < a.tokens;
      const int64_t at = static_cast<int64_t>(head) * a.padded + t;
      const int low = real ? a.low[t] : 0;
      const float lse = real ? a.lse[at] : INFINITY, delta = real ? a.delta[at] : 0.0f;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int key = j0 + tx + 16 * j, to = (ty + 16 * i) * C::kProbLd + tx + 16 * j;
        const float x =
            key >= low && key <= t && key < a.tokens ? expf(a.scale * s[i][j] - lse) : 0.0f;
        p[to] = x;
        ds[to] = a.scale * x * (dp[i][j] - delta);
      }
    }
  }
};

// dk and dv of R keys of one kv head: its heads in order, their rows in order.
template <class C, typename T>
__global__ void __launch_bounds__(kThreads) bwd_keys_exact(AttentionBwd<T> a) {
  extern __shared__ float shared[];
  const BwdTiles<C, T> tiles(a, shared);
  const int kv = blockIdx.y, j0 = blockIdx.x * C::R, group = a.heads / a.kv_heads;
  const int row = threadIdx.x / C::kPerRow, c0 = threadIdx.x % C::kPerRow;
  float dk[C::kCols] = {}, dv[C::kCols] = {};
  tiles.load_keys(j0, kv);
  for (int head = kv * group; head < (kv + 1) * group; ++head)
    for (int t0 = j0; t0 < a.tokens && a.low[t0] < j0 + C::R; t0 += C::R) {
      tiles.load_rows(t0, head);
      __syncthreads();
      tiles.soften(t0, head, j0);
      __syncthreads();
      for (int t = 0; t < C::R; ++t) {
        const float p = tiles.p[t * C::kProbLd + row], ds = tiles.ds[t * C::kProbLd + row];
#pragma unroll
        for (int i = 0; i < C::kCols; ++i) {
          const int c = c0 + i * C::kPerRow;
          if (c >= tiles.dim) continue;
          dv[i] = fmaf(p, tiles.dy[t * tiles.ld + c], dv[i]);
          dk[i] = fmaf(ds, tiles.q[t * tiles.ld + c], dk[i]);
        }
      }
      __syncthreads();
    }
  if (j0 + row >= a.tokens) return;
#pragma unroll
  for (int i = 0; i < C::kCols; ++i) {
    const int c = c0 + i * C::kPerRow;
    if (c >= tiles.dim) continue;
    if (a.dk) a.dk[j0 + row][kv * tiles.dim + c] = from_f32<T>(dk[i]);
    if (a.dv) a.dv[j0 + row][kv * tiles.dim + c] = from_f32<T>(dv[i]);
  }
}

template <class C, typename T>
__global__ void __launch_bounds__(kThreads) bwd_rows_exact(AttentionBwd<T> a) {
  extern __shared__ float shared[];
  const BwdTiles<C, T> tiles(a, shared);
  const int head = blockIdx.y, t0 = blockIdx.x * C::R, group = a.heads / a.kv_heads;
  const int row = threadIdx.x / C::kPerRow, c0 = threadIdx.x % C::kPerRow;
  float dq[C::kCols] = {};
  tiles.load_rows(t0, head);
  const int stop = min(t0 + C::R, a.tokens);
  for (int j0 = a.low[t0]; j0 < stop; j0 += C::R) {
    tiles.load_keys(j0, head / group);
    __syncthreads();
    tiles.soften(t0, head, j0);
    __syncthreads();
    for (int j = 0; j < C::R; ++j) {
      const float ds = tiles.ds[row * C::kProbLd + j];
#pragma unroll
      for (int i = 0; i < C::kCols; ++i) {
        const int c = c0 + i * C::kPerRow;
        if (c < tiles.dim) dq[i] = fmaf(ds, tiles.k[j * tiles.ld + c], dq[i]);
      }
    }
    __syncthreads();
  }
  if (t0 + row >= a.tokens) return;
#pragma unroll
  for (int i = 0; i < C::kCols; ++i) {
    const int c = c0 + i * C::kPerRow;
    if (c < tiles.dim) a.dq[t0 + row][head * tiles.dim + c] = from_f32<T>(dq[i]);
  }
}

// Eight threads per row, a head per grid row; N elements at once.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    stats(Rows<const T> dy, Rows<const T> y, Rows<const float> lse, const int32_t* begin,
          AttentionStats to, int tokens, int dim, int window, float factor) {
  begin_kernel();
  const int t = static_cast<int>(blockIdx.x * (kThreads / 8) + threadIdx.x / 8);
  const int head = static_cast<int>(blockIdx.y), part = threadIdx.x % 8;
  float sum = 0.0f;
  if (t < tokens)
    for (int c = part * N; c < dim; c += 8 * N) {
      const auto a = load<N>(dy[t] + head * dim + c), b = load<N>(y[t] + head * dim + c);
#pragma unroll
      for (int i = 0; i < N; ++i) sum = fmaf(to_f32(a.at[i]), to_f32(b.at[i]), sum);
    }
  for (int o = 4; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (part != 0 || t >= to.padded) return;
  const int64_t at = static_cast<int64_t>(head) * to.padded + t;
  const float value = t < tokens ? lse[t][head] : -INFINITY;
  to.lse[at] = value == -INFINITY ? INFINITY : value * factor;
  to.delta[at] = sum;
  if (head == 0) {
    const int row = min(t, tokens - 1);
    to.low[t] = max(max(begin[row], 0), window > 0 ? row + 1 - window : 0);
  }
}

template <typename F>
void with_tile(int dim, F&& f) {
  if (dim <= 64)
    f(Tile<32, 64>{});
  else if (dim <= 128)
    f(Tile<32, 128>{});
  else
    f(Tile<16, kAttentionMostDim>{});
}
template <class C>
size_t tile_bytes(int dim, int tiles, int probabilities) {
  return static_cast<size_t>(C::R * (tiles * (dim | 1) + probabilities * C::kProbLd)) *
         sizeof(float);
}
dim3 grid_of(int rows, int per_block, int heads) {
  return dim3(static_cast<unsigned>(divide_up(rows, per_block)), static_cast<unsigned>(heads));
}

}  // namespace

AttentionStats attention_stats_at(const StepArgs& args, void* scratch) {
  const int64_t heads = attr<AttentionAttr>(*args.step).heads;
  const int64_t padded = AttentionStats::padded_rows(args.in[1].rows);
  AttentionStats to{};
  to.padded = static_cast<int>(padded);
  to.lse = static_cast<float*>(scratch);
  to.delta = to.lse + heads * padded;
  to.low = reinterpret_cast<int32_t*>(to.delta + heads * padded);
  return to;
}

AttentionStats attention_stats(const StepArgs& args, float factor, void* scratch) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  const AttentionStats to = attention_stats_at(args, scratch);
  const int64_t tokens = args.in[1].rows, padded = to.padded;
  const dim3 blocks(static_cast<unsigned>(divide_up(padded * 8, kThreads)),
                    static_cast<unsigned>(a.heads));
  auto start = [&](auto* type, auto kernel) {
    using T = std::remove_pointer_t<decltype(type)>;
    prefer_shared(kernel);
    launch(queue(args), kernel, blocks, kThreads, 0, rows<const T>(args.in[0]),
           rows<const T>(args.in[4]), rows<const float>(args.in[5]), args.in[6].as<const int32_t>(),
           to, static_cast<int>(tokens), static_cast<int>(a.head_dim), static_cast<int>(a.window),
           factor);
  };
  with_activation(args.in[0].dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kWide = 16 / sizeof(T);
    const bool wide = aligned16(args.in[0]) && aligned16(args.in[4]) && a.head_dim % kWide == 0;
    if (wide)
      start(type, stats<T, kWide>);
    else
      start(type, stats<T, 1>);
  });
  return to;
}

void attention_fwd_exact(const StepArgs& args) {
  with_activation(args.in[0].dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto a = attention_fwd_args<T>(args);
    with_tile(a.head_dim, [&](auto tile) {
      using C = decltype(tile);
      const size_t bytes = tile_bytes<C>(a.head_dim, 2, 1);
      allow_shared(fwd_exact<C, T>, bytes);
      fwd_exact<C, T><<<grid_of(a.tokens, C::R, a.heads), kThreads, bytes, queue(args).stream>>>(a);
    });
  });
}

void attention_bwd_exact(const StepArgs& args) {
  const AttentionStats stats = attention_stats(args, 1.0f, args.scratch);
  with_activation(args.in[0].dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto a = attention_bwd_args<T>(args, stats);
    with_tile(a.head_dim, [&](auto tile) {
      using C = decltype(tile);
      const size_t bytes = tile_bytes<C>(a.head_dim, 4, 2);
      const cudaStream_t stream = queue(args).stream;
      if (args.out[1] || args.out[2]) {
        allow_shared(bwd_keys_exact<C, T>, bytes);
        bwd_keys_exact<C, T><<<grid_of(a.tokens, C::R, a.kv_heads), kThreads, bytes, stream>>>(a);
      }
      if (args.out[0]) {
        allow_shared(bwd_rows_exact<C, T>, bytes);
        bwd_rows_exact<C, T><<<grid_of(a.tokens, C::R, a.heads), kThreads, bytes, stream>>>(a);
      }
    });
  });
}

}  // namespace wick::cuda
