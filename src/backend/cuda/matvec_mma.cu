// SPDX-License-Identifier: Apache-2.0
// matvec by the tensor cores: x in bf16, w in bf16 or codes. Rows of w are the n of
// mma.m16n8k16, rows of x its m, so that 16 rows cost what one does.
//
// A tile is 8 rows of w, shared by `parts` warps that split k between them; a block has x in shared
// memory and goes from tile to tile. With g = lane / 4 and t = lane % 4 a lane reads 16 bytes of
// row g at a time; which k of a chunk stands in which place of the product does not matter as long
// as x agrees, so x is laid out as the lanes want it. A lane's first chunks, and a stretch of what
// later kernels will read, are on their way before the kernel waits for x.
//
// Codes are multiplied as they are, bf16 holding them exactly, and the sum of 32 is scaled in f32.
// A row's bits depend on K, N and the number of multiprocessors, not on the rows beside it.
#include "backend/cuda/attention.h"
#include "backend/cuda/matvec.cuh"
#include "backend/cuda/matvec.h"
#include "backend/cuda/matvec_weights.cuh"

namespace wick::cuda {
namespace {

constexpr int kTile = 8, kLeastWarps = 8;
constexpr int kNormBlocks = 2;  // of a multiprocessor
// With a norm blocks are small, so that several of them share a multiprocessor.
constexpr int most_warps(bool norm) { return norm ? kLeastWarps : 16; }

// ---- what a tile's rows of w are, and what becomes of their sums
//
// kPairs: a tile is 4 rows and their 4 partners, and put() gets the sums of both.

struct Store : Into {
  static constexpr bool kPairs = false;
  struct Early {
    float bias;
  };
  __device__ int64_t row(int64_t tile, int g) const { return tile * kTile + g; }
  __device__ void weights(Early& e, int64_t n) const { e.bias = bias[n]; }
  __device__ void feeds(Early&, int64_t) const {}
  __device__ void look_up(Early&, int64_t) const {}
};

struct Gated {
  static constexpr bool kPairs = true;
  Rows<Bf16> y;
  AnyFloats bias;
  int64_t half;
  bool silu;
  struct Early {
    float gate, up;
  };
  __device__ int64_t row(int64_t tile, int g) const {
    return tile * 4 + g % 4 + (g < 4 ? 0 : half);
  }
  __device__ void weights(Early& e, int64_t n) const { e = {bias[n], bias[half + n]}; }
  __device__ void feeds(Early&, int64_t) const {}
  __device__ void look_up(Early&, int64_t) const {}
  __device__ void put(int64_t m, int64_t n, float gate, float up, const Early& e) const {
    // Rounded as if they had been written in between.
    const float x = to_f32(from_f32<Bf16>(gate + e.gate)), u = to_f32(from_f32<Bf16>(up + e.up));
    const float inner = silu ? x : 1.5957691216f * x * fmaf(x * x, 0.044715f, 1.0f);
    y[m][n] = from_f32<Bf16>(x * __fdividef(1.0f, 1.0f + __expf(-inner)) * u);
  }
};

struct Rotated {
  static constexpr bool kPairs = true;
  Rows<Bf16> q, cache_k, cache_v;
  Rows<const float> table;
  const int32_t *positions, *cache_rows;
  AnyFloats bias;
  int heads, kv_heads, half;  // half of a head
  struct Early {
    float low, high, cosine, sine;
    int position, cache_row;
  };
  // Pair n of the columns: element n % half of head n / half, and the one half a head further.
  __device__ int64_t low(int64_t n) const { return n / half * 2 * half + n % half; }
  __device__ int64_t row(int64_t tile, int g) const {
    return low(tile * 4 + g % 4) + (g < 4 ? 0 : half);
  }
  __device__ void weights(Early& e, int64_t n) const {
    e.low = bias[low(n)];
    e.high = bias[low(n) + half];
  }
  __device__ void feeds(Early& e, int64_t m) const {
    e.position = positions[m];
    e.cache_row = cache_rows[m];
  }
  __device__ void look_up(Early& e, int64_t n) const {
    const float* angle = table[e.position] + n % half;
    const bool turns = n / half < heads + kv_heads;
    e.cosine = turns ? angle[0] : 1.0f;
    e.sine = turns ? angle[half] : 0.0f;
  }
  __device__ void put(int64_t m, int64_t n, float first, float second, const Early& e) const {
    const float u = to_f32(from_f32<Bf16>(first + e.low));
    const float v = to_f32(from_f32<Bf16>(second + e.high));
    const int head = static_cast<int>(n / half);
    Bf16* to = nullptr;
    if (head < heads)
      to = q[m] + low(n);
    else if (e.cache_row >= 0 && head < heads + kv_heads)
      to = cache_k[e.cache_row] + low(n) - heads * 2 * half;
    else if (e.cache_row >= 0)
      to = cache_v[e.cache_row] + low(n) - (heads + kv_heads) * 2 * half;
    if (to == nullptr) return;
    to[0] = from_f32<Bf16>(u * e.cosine - v * e.sine);
    to[half] = from_f32<Bf16>(v * e.cosine + u * e.sine);
  }
};

// ---- the norm before a product

struct Norm {
  Rows<const Bf16> a, b;
  Rows<Bf16> sum, normed;
  AnyFloats gain;
  float inverse, eps;
};

// Elements of a row of x in shared memory: whole chunks, and rows that lie in other banks.
__host__ __device__ constexpr int x_ld(int k) { return (k + 127) / 128 * 128 + 32; }

// f(column) for the stretches of 8 columns that a thread of the block has in every row.
template <typename F>
__device__ inline void each_pack(int k, F&& f) {
  for (int c = threadIdx.x * 8; c < k; c += blockDim.x * 8) f(c);
}

constexpr int kRowsAtOnce = 4;  // whose loads are on their way together

// x into shared memory, zeros behind its columns.
template <class W>
__device__ inline void take_x(Rows<const Bf16> from, int m, int k, Bf16* x) {
  for (int first = 0; first < m; first += kRowsAtOnce)
    each_pack(x_ld(k) - 32, [&](int c) {
      Pack<Bf16, 8> v[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i)
        if (first + i < m && c < k) v[i] = load<8>(from[first + i] + c);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i)
        if (first + i < m) W::put(x + (first + i) * x_ld(k), c, c < k ? v[i] : Pack<Bf16, 8>{});
    });
  __syncthreads();
}

// The norm of a + b into shared memory. `gains` hold its gain, written by the threads that read it.
template <class W>
__device__ inline void make_norm(const Norm& norm, int m, int k, Bf16* x, const float* gains) {
  __shared__ float squares[kMatvecMmaRows][kLeastWarps];
  const int ld = x_ld(k), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int first = 0; first < m; first += kRowsAtOnce) {
    float sums[kRowsAtOnce] = {};
    each_pack(k, [&](int c) {
      Pack<Bf16, 8> a[kRowsAtOnce], b[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (first + i >= m) break;
        a[i] = load<8>(norm.a[first + i] + c);
        if (norm.b) b[i] = load<8>(norm.b[first + i] + c);
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (first + i >= m) break;
        if (norm.b)
#pragma unroll
          for (int j = 0; j < 8; ++j)
            a[i].at[j] = from_f32<Bf16>(to_f32(a[i].at[j]) + to_f32(b[i].at[j]));
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i] = fmaf(to_f32(a[i].at[j]), to_f32(a[i].at[j]), sums[i]);
        store(x + (first + i) * ld + c, a[i]);
        if (norm.sum && blockIdx.x == 0) store(norm.sum[first + i] + c, a[i]);
      }
    });
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (first + i >= m) break;
      sums[i] = warp_sum(sums[i]);
      if (lane == 0) squares[first + i][warp] = sums[i];
    }
  }
  __syncthreads();
  for (int r = 0; r < m; ++r) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kLeastWarps; ++i) sum += squares[r][i];
    const float rstd = rsqrtf(fmaf(sum, norm.inverse, norm.eps));
    Bf16* row = x + r * ld;
    for (int base = 0; base < ld - 32; base += blockDim.x * 8) {
      const int c = base + threadIdx.x * 8;
      Pack<Bf16, 8> v{};
      if (c < k) {
        v = load<8>(row + c);
#pragma unroll
        for (int j = 0; j < 8; ++j) v.at[j] = from_f32<Bf16>(to_f32(v.at[j]) * rstd * gains[c + j]);
        if (norm.normed && blockIdx.x == 0) store(norm.normed[r] + c, v);
      }
      // Places change within chunks alone, and those of 32 lie with neighbouring lanes.
      __syncwarp();
      if (c < ld - 32) W::put(row, c, v);
    }
  }
  __syncthreads();
}

// ---- the kernel

template <class W, class Out>
struct Args {
  Rows<const Bf16> x;
  Norm norm;
  W w;
  Out out;
  WeightsAhead ahead;
  int64_t tiles, last_row;
  int m, k, parts;
};

__device__ inline void ask_for(const WeightsAhead& ahead) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (threadIdx.x >= WeightsAhead::kMost) return;
  const WeightsAhead::Stretch s = ahead.at[threadIdx.x];
  const int64_t slice = (s.bytes / gridDim.x + 127) / 128 * 128, begin = slice * blockIdx.x;
  if (begin >= s.bytes) return;
  const auto bytes = static_cast<uint32_t>(min(slice, s.bytes - begin));
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(s.data + begin), "r"(bytes));
#endif
}

template <class W, int kHalves, bool kNorm, class Out>
__global__ void __launch_bounds__(32 * most_warps(kNorm), kNorm ? kNormBlocks : 1)
    matvec_mma_fwd(const __grid_constant__ Args<W, Out> p) {
  extern __shared__ uint4 dynamic[];
  __shared__ float shared[2][most_warps(kNorm)][8 * kHalves][kTile];
  constexpr int kAhead = W::kAhead;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = warp % p.parts, per_block = blockDim.x / 32 / p.parts;
  const int chunks = (p.k + W::kChunk - 1) / W::kChunk;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * per_block;
  int64_t tile = static_cast<int64_t>(blockIdx.x) * per_block + warp / p.parts;
  auto lane_of = [&](int64_t of) {
    auto row = [&](int i) { return min(p.out.row(min(of, p.tiles - 1), i), p.last_row); };
    return p.w.lane(row(g), row(2 * t), row(2 * t + 1), t);
  };
  auto read = [&](const typename W::Lane& from, int c, typename W::Raw& to) {
    from.read(min(c, chunks - 1), c < chunks && W::inside(c, t, p.k), to);
  };
  typename W::Lane from = lane_of(tile);
  typename W::Raw raw[kAhead] = {};
#pragma unroll
  for (int i = 0; i < kAhead; ++i) read(from, part + i * p.parts, raw[i]);

  // Element `lane + 32 i` of what a tile's first warp writes is of row m, column or pair n.
  constexpr int kColumns = Out::kPairs ? 4 : 8, kMine = 8 * kHalves * kColumns / 32;
  typename Out::Early early[kMine];
  auto each_mine = [&](auto&& f) {
    if (part > 0 || tile >= p.tiles) return;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int m = (lane + 32 * i) / kColumns, j = lane % kColumns;
      const int64_t n = tile * kColumns + j;
      if (m < p.m && (Out::kPairs || n <= p.last_row)) f(early[i], m, j, n);
    }
  };
  each_mine([&](auto& e, int, int, int64_t n) { p.out.weights(e, n); });
  ask_for(p.ahead);
  Bf16* x = reinterpret_cast<Bf16*>(dynamic);
  if constexpr (kNorm) {
    float* gains = reinterpret_cast<float*>(x + p.m * x_ld(p.k));
    each_pack(p.k, [&](int c) {
      float gain[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) gain[i] = p.norm.gain[c + i];
#pragma unroll
      for (int i = 0; i < 8; ++i) gains[c + i] = gain[i];
    });
    begin_kernel();
    each_mine([&](auto& e, int m, int, int64_t) { p.out.feeds(e, m); });
    make_norm<W>(p.norm, p.m, p.k, x, gains);
  } else {
    begin_kernel();
    take_x<W>(p.x, p.m, p.k, x);
  }
  // Rows that x has not give sums that nobody reads.
  const Bf16* rows_of_x[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) rows_of_x[h] = x + min(g + 8 * h, p.m - 1) * x_ld(p.k);

  for (int64_t base = tile - warp / p.parts, turn = 0; base < p.tiles; base += stride, ++turn) {
    each_mine([&](auto& e, int m, int, int64_t n) {
      if (turn > 0) {
        p.out.weights(e, n);
        p.out.feeds(e, m);
      }
      p.out.look_up(e, n);
    });
    float sums[2][4] = {};
    for (int c = part; c - part < chunks; c += kAhead * p.parts) {
      // Behind the last chunks come the first of the next tile.
      int next = c + kAhead * p.parts;
      if (next - part >= chunks) {
        next = base + stride < p.tiles ? part : chunks;
        from = lane_of(tile + stride);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const typename W::Raw now = raw[i];
        read(from, next + i * p.parts, raw[i]);
        if (c + i * p.parts < chunks) W::multiply(now, rows_of_x, c + i * p.parts, t, sums);
      }
    }
    auto& joint = shared[turn % 2];
    *reinterpret_cast<float2*>(&joint[warp][g][2 * t]) = {sums[0][0] + sums[1][0],
                                                          sums[0][1] + sums[1][1]};
    if constexpr (kHalves > 1)
      *reinterpret_cast<float2*>(&joint[warp][8 + g][2 * t]) = {sums[0][2] + sums[1][2],
                                                                sums[0][3] + sums[1][3]};
    if (p.parts > 1)
      __syncthreads();
    else
      __syncwarp();
    auto total = [&](int m, int j) {
      float sum = joint[warp][m][j];
      for (int i = 1; i < p.parts; ++i) sum += joint[warp + i][m][j];
      return sum;
    };
    each_mine([&](auto& e, int m, int j, int64_t n) {
      if constexpr (Out::kPairs)
        p.out.put(m, n, total(m, j), total(m, j + 4), e);
      else
        p.out.put(m, n, total(m, j), e.bias);
    });
    tile += stride;
  }
}

// ---- launches

// Warps to a tile: one where there are many tiles, else enough to fill the card, and those that
// have all of their chunks on their way at once.
template <class W>
int parts_of(int64_t tiles, int64_t k, int sms, bool norm) {
  const int64_t chunks = divide_up(k, W::kChunk);
  int parts = 1;
  if (tiles >= 32 * sms) return parts;
  auto grows = [&] {
    return chunks > W::kAhead * parts || (tiles * parts < 8 * sms && chunks > W::kLeast * parts);
  };
  while (parts < most_warps(norm) && grows()) parts *= 2;
  return parts;
}

constexpr size_t kMostShared = size_t{160} << 10;

template <class W, class Out>
bool launch_with(const Queue& queue, const MatvecIn& in, const W& w, const Operand& matrix,
                 const Out& out) {
  const Operand& x = in.a ? in.a : in.x;
  const int64_t tiles = divide_up(matrix.rows, kTile);
  const bool norms = static_cast<bool>(in.a);
  const size_t shared =
      static_cast<size_t>(x.rows * x_ld(static_cast<int>(x.cols)) * 2 + (norms ? x.cols * 4 : 0));
  if (shared > kMostShared) return false;
  Args<W, Out> p{.x = rows<const Bf16>(in.x),
                 .norm = {rows<const Bf16>(in.a), rows<const Bf16>(in.b), rows<Bf16>(in.sum),
                          rows<Bf16>(in.normed), any_floats(in.gain),
                          1.0f / static_cast<float>(x.cols), in.eps},
                 .w = w,
                 .out = out,
                 .ahead = queue.arch == Arch::kSm90 && queue.ahead ? *queue.ahead : WeightsAhead{},
                 .tiles = tiles,
                 .last_row = matrix.rows - 1,
                 .m = static_cast<int>(x.rows),
                 .k = static_cast<int>(x.cols),
                 .parts = parts_of<W>(tiles, x.cols, queue.sms, norms)};
  const int warps = std::max(p.parts, kLeastWarps);
  const int resident = norms ? kNormBlocks : warps > kLeastWarps ? 1 : 2;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(divide_up(tiles, warps / p.parts), int64_t{resident} * queue.sms));
  const auto go = [&](auto halves, auto norm) {
    const auto kernel = matvec_mma_fwd<W, halves(), norm(), Out>;
    if (!allow_shared(kernel, shared)) return false;
    launch(queue, kernel, blocks, 32 * warps, shared, p);
    return true;
  };
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  if constexpr (std::is_same_v<Out, Store>)
    if (!in.a) return x.rows <= 8 ? go(One{}, std::false_type{}) : go(Two{}, std::false_type{});
  return x.rows <= 8 ? go(One{}, std::true_type{}) : go(Two{}, std::true_type{});
}

template <class Out>
bool launch_any(const Queue& queue, const MatvecIn& in, const Operand& w, const Out& out) {
  const Operand& x = in.a ? in.a : in.x;
  for (const Operand& o : {in.x, in.a, in.b, in.sum, in.normed})
    if (o && (o.dtype != DType::kBF16 || !aligned16(o))) return false;
  if (x.rows > kMatvecMmaRows || x.cols > INT32_MAX / 2) return false;
  if (has_codes(w)) {
    return quant_bits(w.dtype) == 8 ? launch_with(queue, in, CodedWeights<8>{codes(w)}, w, out)
                                    : launch_with(queue, in, CodedWeights<4>{codes(w)}, w, out);
  }
  if (w.dtype != DType::kBF16 || !aligned16(w)) return false;
  return launch_with(queue, in, PlainWeights{rows<const Bf16>(w)}, w, out);
}

}  // namespace

bool matvec_mma(const Queue& queue, const MatvecIn& in, float alpha, bool accumulate,
                const Operand& w, const Operand& bias, const Operand& y) {
  return launch_any(queue, in, w, Store{into(alpha, accumulate, bias, y)});
}

bool matvec_gated(const Queue& queue, const MatvecIn& in, const Operand& w, const Operand& bias,
                  Act act, const Operand& y) {
  if (w.rows % kTile != 0 || y.dtype != DType::kBF16) return false;
  const int64_t half = w.rows / 2;
  return launch_any(queue, in, w, Gated{rows<Bf16>(y), any_floats(bias), half, act == Act::kSilu});
}

bool matvec_rotated(const Queue& queue, const MatvecIn& in, const Operand& w, const Operand& bias,
                    const MatvecRotation& r) {
  if (r.head_dim % kTile != 0 || r.q.dtype != DType::kBF16 || r.cache_k.dtype != DType::kBF16)
    return false;
  const Rotated out{.q = rows<Bf16>(r.q),
                    .cache_k = rows<Bf16>(r.cache_k),
                    .cache_v = rows<Bf16>(r.cache_v),
                    .table = rows<const float>(r.table),
                    .positions = r.positions.as<const int32_t>(),
                    .cache_rows = r.cache_rows.as<const int32_t>(),
                    .bias = any_floats(bias),
                    .heads = static_cast<int>(r.heads),
                    .kv_heads = static_cast<int>(r.kv_heads),
                    .half = static_cast<int>(r.head_dim / 2)};
  return launch_any(queue, in, w, out);
}

}  // namespace wick::cuda
