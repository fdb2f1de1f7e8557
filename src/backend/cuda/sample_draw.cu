// SPDX-License-Identifier: Apache-2.0
// The draw of sample, as backend/draw.h has it: a cluster of blocks to a row (one block before
// sm_90), each with a part of its logits.
//
// Nothing is sorted. Weights are not negative, so their bits order as they do: a histogram of
// counts and masses finds the bucket in which a filter cuts, and finer ones of that bucket's
// weights the very weight, unless the bucket holds but one. Masses and sums are integers, so that
// the order in which threads add does not matter; they differ from draw.h's sums by less than those
// are rounded. Bound by the steps of a row, each a pass over logits in the second-level cache and a
// barrier of the cluster.
#include "backend/cuda/sample.cuh"
#include "backend/cuda/shared.cuh"

namespace wick::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32, kCluster = 8;
// Of weights: those below kCoarse are one bucket, above it 64 have a power of two between them.
constexpr uint32_t kLeast = 0x00800000u, kCoarse = 0x33800000u, kOne = 0x3f800000u;
constexpr int kCoarseShift = 17, kSmallBits = 30;  // bits below kCoarse
static_assert(((kOne - kCoarse) >> kCoarseShift) + 2 <= kDrawBuckets && kCoarse >> kSmallBits == 0);

// exp_negative() of backend/draw.h, to the bit.
__device__ inline float weight_of(float x) {
  const float clamped = -__int_as_float(min(__float_as_int(x) & 0x7fffffff, 0x42b00000));
  const float n = __fsub_rn(__fadd_rn(__fmul_rn(clamped, 1.44269504f), 12582912.0f), 12582912.0f);
  const float r =
      __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, -2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
  p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
  p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
  return __fmul_rn(p, __int_as_float((static_cast<int>(n) + 127) << 23));
}

// philox() of base/rng.h, and random_draw().where of backend/draw.h
__device__ inline double where_of(uint2 key, uint32_t position) {
  uint4 c{position, 0, 0, 0};
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = {high1 ^ c.y ^ key.x, low1, high0 ^ c.w ^ key.y, low0};
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  const uint64_t bits = static_cast<uint64_t>(c.y) << 32 | c.z;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

struct DrawArgs {
  Rows<const float> logits;
  Rows<const int32_t> how;
  const Best* found;
  uint64_t* zeros;
  int32_t* token;
  Walk walk;
  int vocab, stretches, warp_logits;  // of a warp, in order of warps and blocks
  int blocks;
  float one;  // what a weight of 1 counts, a power of two
};

struct Tally {
  uint64_t count, mass;
};
__device__ inline Tally operator+(Tally a, Tally b) { return {a.count + b.count, a.mass + b.mass}; }

constexpr int kFew = 256;

// A histogram of this block, and what its threads share.
struct Shared {
  uint32_t count[kDrawBuckets], low[kDrawBuckets], high[kDrawBuckets];
  Tally warps[kWarps];
  Tally above, inside;
  int bucket;
  uint32_t listed[2];  // of two filters: keys of this block's part
  uint64_t list[2][kFew];
  uint64_t keys[kFew];  // of all blocks
  uint64_t cut, kept;
  uint64_t shares[kCluster];  // of the blocks' sums
};

__device__ inline uint64_t key_of(uint32_t bits, int id) {
  return static_cast<uint64_t>(bits) << 32 | ~static_cast<uint32_t>(id);
}

struct Row {
  const DrawArgs& a;
  Shared& s;
  const float* logits;
  uint64_t* zeros;
  float most;

  template <typename F>
  __device__ void each(F&& f) const {
    const int warp = blockIdx.x * kWarps + threadIdx.x / 32;
    const int begin = warp * a.warp_logits, end = min(a.vocab, begin + a.warp_logits);
#pragma unroll 4
    for (int v = begin + static_cast<int>(threadIdx.x % 32); v < end; v += 32)
      f(v, __ldg(logits + v));
  }
  __device__ uint64_t counted(float weight) const { return __float2ull_rd(weight * a.one); }
  __device__ uint32_t bits(float logit) const {
    return __float_as_uint(weight_of(__fsub_rn(logit, most)));
  }
  __device__ void barrier() const {
    if (a.blocks > 1) {
      cluster_barrier();
    } else {
      __threadfence_block();
      __syncthreads();
    }
  }

  // What lies at `p` in block `rank`.
  __device__ uint64_t peek(const uint64_t* p, int rank) const {
    uint64_t x = *p;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (a.blocks > 1)
      asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(x) : "r"(cluster_address(p, rank)));
#endif
    return x;
  }
  __device__ uint32_t peek(const uint32_t* p, int rank) const {
    uint32_t x = *p;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (a.blocks > 1)
      asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(x) : "r"(cluster_address(p, rank)));
#endif
    return x;
  }

  // Adds a weight to the block's histogram. Masses are two words, the low one's carry being added
  // to the high one.
  __device__ void add(int bucket, uint32_t count, uint64_t mass) const {
    atomicAdd(s.count + bucket, count);
    const auto low = static_cast<uint32_t>(mass);
    const uint32_t old = atomicAdd(s.low + bucket, low);
    const uint32_t high = static_cast<uint32_t>(mass >> 32) + (old + low < old ? 1u : 0u);
    if (high != 0) atomicAdd(s.high + bucket, high);
  }

  // The row's histogram, in `table` for all blocks: f(bits, id) gives a bucket, or -1.
  template <typename F>
  __device__ void tally(uint64_t* table, int buckets, F&& f) const {
    for (int i = threadIdx.x; i < buckets; i += kThreads) s.count[i] = s.low[i] = s.high[i] = 0;
    __syncthreads();
    // Most weights are small, and would all add to one place.
    uint32_t count = 0;
    uint64_t mass = 0;
    each([&](int v, float logit) {
      const uint32_t b = bits(logit);
      const int bucket = b < kLeast ? -1 : f(b, v);
      if (bucket < 0) return;
      const uint64_t m = counted(__uint_as_float(b));
      if (bucket > 0) return add(bucket, 1, m);
      ++count;
      mass += m;
    });
    for (int o = 16; o > 0; o >>= 1) {
      count += __shfl_xor_sync(0xffffffffu, count, o);
      mass += __shfl_xor_sync(0xffffffffu, mass, o);
    }
    if (threadIdx.x % 32 == 0 && count > 0) add(0, count, mass);
    __syncthreads();
    for (int i = threadIdx.x; i < buckets; i += kThreads)
      if (s.count[i] > 0) {
        auto* to = reinterpret_cast<unsigned long long*>(table + 2 * i);
        atomicAdd(to, s.count[i]);
        atomicAdd(to + 1, static_cast<uint64_t>(s.high[i]) << 32 | s.low[i]);
      }
    barrier();
  }

  __device__ Tally read(const uint64_t* table, int i) const {
    const auto* at = reinterpret_cast<const unsigned long long*>(table + 2 * i);
    return {__ldcg(at), __ldcg(at + 1)};
  }

  // Sums from the last bucket down; `mine` becomes those before this thread's.
  __device__ Tally scan(Tally& mine) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto of_warp = [&](Tally x) {
      for (int o = 1; o < 32; o *= 2) {
        const Tally y{__shfl_up_sync(0xffffffffu, x.count, o),
                      __shfl_up_sync(0xffffffffu, x.mass, o)};
        if (lane >= o) x = x + y;
      }
      return x;
    };
    const Tally own = mine, sum = of_warp(own);
    if (lane == 31) s.warps[warp] = sum;
    __syncthreads();
    const Tally all = of_warp(s.warps[lane]);
    Tally before{__shfl_sync(0xffffffffu, all.count, max(warp - 1, 0)),
                 __shfl_sync(0xffffffffu, all.mass, max(warp - 1, 0))};
    if (warp == 0) before = {};
    const Tally total{__shfl_sync(0xffffffffu, all.count, 31),
                      __shfl_sync(0xffffffffu, all.mass, 31)};
    mine = before + Tally{sum.count - own.count, sum.mass - own.mass};
    __syncthreads();
    return total;
  }

  // This thread's two buckets of a table, from the top, and what lies above them.
  struct Pair {
    int first;
    Tally x, y, before;
  };
  __device__ Pair scan_table(const uint64_t* table, int buckets, Tally above, Tally& total) const {
    Pair p;
    p.first = buckets - 1 - 2 * static_cast<int>(threadIdx.x);
    p.x = p.first >= 0 ? read(table, p.first) : Tally{};
    p.y = p.first >= 1 ? read(table, p.first - 1) : Tally{};
    p.before = p.x + p.y;
    total = scan(p.before);
    p.before = p.before + above;
    return p;
  }
  // What a filter keeps, likeliest first: the fewest that are `count` and have `mass`.
  struct Target {
    uint64_t count, mass;
    __device__ bool met(Tally t) const { return t.count >= count && t.mass >= mass; }
  };
  // The last bucket that it needs, into s.
  __device__ void choose(const Pair& p, Target target) const {
    auto test = [&](Tally from, Tally own, int bucket) {
      if (own.count == 0 || target.met(from) || !target.met(from + own)) return;
      s.above = from;
      s.inside = own;
      s.bucket = bucket;
    };
    test(p.before, p.x, p.first);
    test(p.before + p.x, p.y, p.first - 1);
    __syncthreads();
  }

  // The last key that it needs; the mass of all. Requires: there are as many, and they weigh as
  // much. `which` filter: each has its own tables and list.
  __device__ uint64_t find(const Pair& coarse, Target target, int which, uint64_t& kept) const {
    uint64_t* tables = zeros + 2 * (kDrawBuckets + which * kDrawLevels * kDrawFine);
    choose(coarse, target);
    Tally above = s.above, inside = s.inside;
    const bool small = s.bucket == 0;
    uint64_t low =
        small
            ? 0
            : static_cast<uint64_t>(kCoarse + (static_cast<uint32_t>(s.bucket - 1) << kCoarseShift))
                  << 32;
    int left = 32 + (small ? kSmallBits : kCoarseShift);
    uint64_t end = small ? static_cast<uint64_t>(kCoarse) << 32 : low + (uint64_t{1} << left);
    for (int level = 0; inside.count > kFew && left > 0; ++level) {
      const int shift = max(left - 9, 0);
      uint64_t* table = tables + 2 * level * kDrawFine;
      tally(table, kDrawFine, [&](uint32_t b, int v) {
        const uint64_t key = key_of(b, v);
        return key >= low && key < end ? static_cast<int>((key - low) >> shift) : -1;
      });
      Tally total;
      choose(scan_table(table, kDrawFine, above, total), target);
      above = s.above;
      inside = s.inside;
      low += static_cast<uint64_t>(s.bucket) << shift;
      left = shift;
      end = low + (uint64_t{1} << left);
    }
    return among_few(low, end, above, target, which, kept);
  }

  __device__ uint64_t among_few(uint64_t low, uint64_t end, Tally above, Target target, int which,
                                uint64_t& kept) const {
    if (threadIdx.x == 0) s.listed[which] = 0;
    __syncthreads();
    each([&](int v, float logit) {
      const uint32_t b = bits(logit);
      const uint64_t key = key_of(b, v);
      if (b >= kLeast && key >= low && key < end)
        s.list[which][atomicAdd(s.listed + which, 1u)] = key;
    });
    barrier();
    // A part of the threads to each block's list.
    const int share = kThreads / a.blocks, of = static_cast<int>(threadIdx.x) / share;
    uint32_t before = 0, count = 0, mine = 0;
    for (int i = 0; i < a.blocks; ++i) {
      const uint32_t listed = peek(s.listed + which, i);
      if (i < of) before += listed;
      if (i == of) mine = listed;
      count += listed;
    }
    for (uint32_t i = threadIdx.x % share; i < mine; i += share)
      s.keys[before + i] = peek(s.list[which] + i, of);
    __syncthreads();
    // Four threads to a key.
    static_assert(kThreads == 4 * kFew);
    const uint32_t at = threadIdx.x / 4;
    const uint64_t own = at < count ? s.keys[at] : 0;
    Tally larger{};
    if (at < count)
      for (uint32_t i = threadIdx.x % 4; i < count; i += 4)
        if (const uint64_t key = s.keys[i]; key > own)
          larger = larger + Tally{1, counted(__uint_as_float(static_cast<uint32_t>(key >> 32)))};
    for (int o = 1; o < 4; o *= 2)
      larger = larger + Tally{__shfl_xor_sync(0xffffffffu, larger.count, o),
                              __shfl_xor_sync(0xffffffffu, larger.mass, o)};
    const Tally from = above + larger;
    const Tally with = from + Tally{1, counted(__uint_as_float(static_cast<uint32_t>(own >> 32)))};
    if (at < count && threadIdx.x % 4 == 0 && !target.met(from) && target.met(with)) {
      s.cut = own;
      s.kept = with.mass;
    }
    __syncthreads();
    kept = s.kept;
    return s.cut;
  }
};

__global__ void __launch_bounds__(kThreads) draw_of_row(DrawArgs a) {
  let_next_start();
  if (a.blocks > 1) cluster_arrive();
  begin_kernel();
  __shared__ Shared s;
  __shared__ Best top;
  const int row = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t* how = a.how[row];
  const float temperature = __int_as_float(how[0]);
  const int position = a.walk.place != nullptr ? a.walk.place[a.walk.ld + row] + 1 : how[6];
  const double where = where_of({static_cast<uint32_t>(how[4]), static_cast<uint32_t>(how[5])},
                                static_cast<uint32_t>(position));
  Best best{-INFINITY, -1};
  for (int i = threadIdx.x; i < a.stretches; i += kThreads)
    best = better(best, a.found[row * a.stretches + i]);
  best = block_best<kThreads>(best);
  if (threadIdx.x == 0) top = best;
  if (a.blocks > 1) cluster_wait();  // all have started, and may be given something
  __syncthreads();
  best = top;
  if (best.index < 0 || !(temperature > 0.0f) || isinf(best.value)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) take_token(best.index, row, a.token, a.walk);
    return;
  }
  const Row r{a, s, a.logits[row], a.zeros + static_cast<int64_t>(row) * kDrawScratch, best.value};

  const float top_p = __int_as_float(how[2]), min_p = __int_as_float(how[3]);
  const int top_k = how[1];
  uint64_t cut = static_cast<uint64_t>(__float_as_uint(min_p)) << 32;
  if (top_k > 0 || top_p < 1.0f) {
    r.tally(r.zeros, kDrawBuckets, [](uint32_t b, int) {
      return b < kCoarse ? 0 : static_cast<int>(((b - kCoarse) >> kCoarseShift) + 1);
    });
    Tally all;
    const Row::Pair coarse = r.scan_table(r.zeros, kDrawBuckets, {}, all);
    uint64_t kept = all.mass, ignored;
    if (top_k > 0 && static_cast<uint64_t>(top_k) < all.count)
      cut = max(cut, r.find(coarse, {static_cast<uint64_t>(top_k), 0}, 0, kept));
    if (top_p < 1.0f) {
      const double mass = ceil(static_cast<double>(top_p) * static_cast<double>(kept));
      cut = max(cut, r.find(coarse, {1, min(static_cast<uint64_t>(mass), kept)}, 1, ignored));
    }
  }
  const float by = fminf(__fdiv_rn(1.0f, temperature), 1e30f);
  // What the logit at v counts.
  auto share_of = [&](int v) -> uint64_t {
    if (v >= a.vocab) return 0;
    const float distance = __fsub_rn(__ldg(r.logits + v), best.value);
    if (cut > 0 && key_of(__float_as_uint(weight_of(distance)), v) < cut) return 0;
    return r.counted(weight_of(__fmul_rn(distance, by)));
  };
  const int begin = (blockIdx.x * kWarps + warp) * a.warp_logits;
  const int end = min(a.vocab, begin + a.warp_logits);
  uint64_t sum = 0;
#pragma unroll 4
  for (int v = begin; v < end; v += 32) sum += share_of(v + lane);
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  // What lies before this warp, and all.
  Tally mine{0, lane == 0 ? sum : 0};
  const uint64_t of_block = r.scan(mine).mass;
  if (static_cast<int>(threadIdx.x) < a.blocks) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (a.blocks > 1)
      asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(
                       cluster_address(s.shares + blockIdx.x, static_cast<int>(threadIdx.x))),
                   "l"(of_block)
                   : "memory");
    else
#endif
      s.shares[0] = of_block;
  }
  r.barrier();
  uint64_t before = __shfl_sync(0xffffffffu, mine.mass, 0), total = 0;
  for (int i = 0; i < a.blocks; ++i) {
    if (i < static_cast<int>(blockIdx.x)) before += s.shares[i];
    total += s.shares[i];
  }
  const uint64_t wanted = min(static_cast<uint64_t>(where * static_cast<double>(total)), total - 1);
  if (wanted < before || wanted >= before + sum) return;
  for (int v = begin; v < end; v += 32) {
    uint64_t share = share_of(v + lane);
    for (int o = 1; o < 32; o *= 2) {
      const uint64_t other = __shfl_up_sync(0xffffffffu, share, o);
      if (lane >= o) share += other;
    }
    const uint32_t reached = __ballot_sync(0xffffffffu, before + share > wanted);
    if (reached != 0) {
      if (lane == 0) take_token(v + __ffs(static_cast<int>(reached)) - 1, row, a.token, a.walk);
      return;
    }
    before += __shfl_sync(0xffffffffu, share, 31);
  }
}

}  // namespace

void draw_rows(const Queue& queue, const Operand& logits, const Operand& how, const Best* found,
               int stretches, uint64_t* zeros, int32_t* token, const Walk& walk) {
  const int blocks = queue.arch == Arch::kSm90 ? kCluster : 1;
  int bits = 62;  // all weights together fit
  while (int64_t{1} << (62 - bits) < logits.cols) --bits;
  const DrawArgs a{.logits = rows<const float>(logits),
                   .how = rows<const int32_t>(how),
                   .found = found,
                   .zeros = zeros,
                   .token = token,
                   .walk = walk,
                   .vocab = static_cast<int>(logits.cols),
                   .stretches = stretches,
                   .warp_logits = static_cast<int>(
                       divide_up(divide_up(logits.cols, int64_t{blocks} * kWarps), 32) * 32),
                   .blocks = blocks,
                   .one = ldexpf(1.0f, bits)};
  launch_clusters(queue, draw_of_row,
                  dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(logits.rows)), kThreads,
                  0, blocks, a);
}

}  // namespace wick::cuda
