// SPDX-License-Identifier: Apache-2.0
// The draw of sample, as backend/draw.h has it: a cluster of blocks to a row (one block before
// sm_90), each thread with a few neighbouring logits in registers.
//
// Nothing is sorted. Weights are not negative, so their bits order as they do: each block has a
// histogram of counts and masses, and what groups of its buckets hold is given to all blocks, which
// find the bucket in which a filter cuts; its few weights are given to all, which find the very
// weight among them. Only where a bucket holds many are they told apart by finer histograms. Masses
// and sums are integers, so that the order in which threads add does not matter; they differ from
// draw.h's sums by less than those are rounded. Bound by the steps of a row that wait for each
// other: a barrier of the cluster for the largest, one for the sum, and two for each filter.
#include "backend/cuda/sample_draw.cuh"

namespace wick::cuda {
namespace {

constexpr int kThreads = kDrawThreads, kWarps = kDrawWarps;

struct DrawArgs {
  Rows<const float> logits;
  Rows<const int32_t> how;
  int32_t* token;
  Walk walk;
  int vocab;
  int lane_logits = 0;  // of a thread, in order of threads and blocks
  int blocks = 1;       // of a row
  bool wide;            // rows lie aligned, and lane_logits is a multiple of 4
  int bits;             // a weight of 1 counts 2^bits
  uint32_t least;       // weights from here on count without a remainder
};

// What a filter keeps, likeliest first: the fewest that are `count` and have `mass`.
struct Target {
  uint32_t count;
  uint64_t mass;
  __device__ bool met(Tally t) const { return t.count >= count && t.mass >= mass; }
};

// A row; a thread holds N logits of it, or where N is 0 reads them again each time.
template <int N>
struct Row {
  const DrawArgs& a;
  DrawShared& s;
  const float* logits;
  int first;                  // of this thread's logits
  float most = 0;             // of the row
  float x[N > 0 ? N : 1];     // NaN beyond the row
  uint32_t w[N > 0 ? N : 1];  // weights' bits, after weigh(); then what draw() makes of them
  bool refined = false, weighs = false;  // histograms: were made finer; have masses

  __device__ void load() {
    if constexpr (N > 0) {
      if (a.wide && first + a.lane_logits <= a.vocab) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
          float4 four{NAN, NAN, NAN, NAN};
          if (i < a.lane_logits) four = __ldg(reinterpret_cast<const float4*>(logits + first + i));
          x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
        }
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i)
          x[i] = i < a.lane_logits && first + i < a.vocab ? __ldg(logits + first + i) : NAN;
      }
    }
  }
  // f(i, logit) for each; its id is first + i.
  template <typename F>
  __device__ void each(F&& f) {
    if constexpr (N > 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) f(i, x[i]);
    } else {
      const int count = min(a.lane_logits, a.vocab - first);
#pragma unroll 4
      for (int i = 0; i < count; ++i) f(i, __ldg(logits + first + i));
    }
  }
  __device__ uint32_t bits(float logit) const {
    return __float_as_uint(weight_of(__fsub_rn(logit, most)));
  }
  __device__ void weigh() {
    if constexpr (N > 0) each([&](int i, float logit) { w[i] = bits(logit); });
  }
  template <typename F>
  __device__ void each_weight(F&& f) {
    each([&](int i, float logit) { f(first + i, N > 0 ? w[i] : bits(logit)); });
  }
  __device__ uint64_t counted(uint32_t weight) const {
    return __float2ull_rd(__uint_as_float(weight) *
                          __uint_as_float(static_cast<uint32_t>(127 + a.bits) << 23));
  }
  __device__ void barrier() const {
    if (a.blocks > 1)
      cluster_barrier();
    else
      __syncthreads();
  }

  // ---- the largest logit

  __device__ uint32_t find_most() {
    const int lane = threadIdx.x % 32, own = blockIdx.x * kWarps + threadIdx.x / 32;
    uint32_t order = 0;
    each([&](int, float logit) { order = max(order, order_of(logit)); });
    order = __reduce_max_sync(kAllLanes, order);
    if (a.blocks > 1) cluster_wait();  // all have started, and may be given something
    if (lane < a.blocks) give(s.most + own, lane, order);
    barrier();
    for (int i = lane; i < a.blocks * kWarps; i += 32) order = max(order, s.most[i]);
    order = __reduce_max_sync(kAllLanes, order);
    most = ordered(order);
    return order;
  }
  // The lowest id that has it, in the first block's first warp.
  __device__ int first_of_most() {
    const int lane = threadIdx.x % 32, own = blockIdx.x * kWarps + threadIdx.x / 32;
    uint32_t id = ~0u;
    each([&](int i, float logit) {
      if (logit == most) id = min(id, static_cast<uint32_t>(first + i));
    });
    id = __reduce_min_sync(kAllLanes, id);
    if (lane == 0) give(s.shares + own, 0, static_cast<uint64_t>(id));
    barrier();
    for (int i = lane; i < a.blocks * kWarps; i += 32)
      id = min(id, static_cast<uint32_t>(s.shares[i]));
    return static_cast<int>(__reduce_min_sync(kAllLanes, id));
  }

  // ---- histograms

  __device__ void clear(int buckets) const {
    for (int i = 4 * threadIdx.x; i < buckets; i += 4 * kThreads) {
      constexpr Pack<uint32_t, 4> kZeros{};
      store(s.count + i, kZeros);
      store(s.sum + i, kZeros);
      store(s.carry + i, kZeros);
    }
  }
  __device__ void add(int bucket, uint32_t count, uint64_t sum) const {
    atomicAdd(s.count + bucket, count);
    const auto low = static_cast<uint32_t>(sum);
    const uint32_t old = atomicAdd(s.sum + bucket, low);
    const uint32_t high = static_cast<uint32_t>(sum >> 32) + (old + low < old ? 1u : 0u);
    if (high != 0) atomicAdd(s.carry + bucket, high);
  }
  // What a bucket weighs. Of the coarse ones the sum is of the bits below the bucket's.
  __device__ uint64_t mass_of(int bucket, const Bucket& x, bool coarse) const {
    const uint64_t sum = static_cast<uint64_t>(x.carry) << 32 | x.sum;
    if (!coarse || bucket == 0) return sum;
    const uint32_t low = a.least + (static_cast<uint32_t>(bucket - 1) << kBucketBits);
    const uint32_t mantissa = (low & 0x007fffffu) | 0x00800000u;
    return (static_cast<uint64_t>(x.count) * mantissa + sum) << (a.bits + (low >> 23) - 150);
  }
  // Gives all blocks what this one's groups hold.
  __device__ void share_groups(int groups, bool coarse) const {
    __syncthreads();
    const int t = threadIdx.x, group = t / 4, part = t % 4;
    if (t / 32 * 32 < 4 * groups) {
      Tally x{};
      if (group < groups) {
        const int first_bucket = group * kGroup + part * (kGroup / 4);
#pragma unroll
        for (int i = 0; i < kGroup / 4; i += 4) {
          const auto count = cuda::load<4>(s.count + first_bucket + i);
          const auto sum = cuda::load<4>(s.sum + first_bucket + i);
          const auto carry = cuda::load<4>(s.carry + first_bucket + i);
#pragma unroll
          for (int j = 0; j < 4; ++j)
            x = x +
                Tally{mass_of(first_bucket + i + j, {count.at[j], sum.at[j], carry.at[j]}, coarse),
                      count.at[j]};
        }
      }
      x = x + across(x, 1);
      x = x + across(x, 2);
      if (group < groups)
        for (int rank = part; rank < a.blocks; rank += 4)
          give(&s.groups[blockIdx.x][group], rank, x);
    }
    barrier();
  }
  // This thread's group, from the top, and those before it.
  struct Scan {
    Tally own, before, all;
    int group;
  };
  __device__ Scan scan_groups(int groups) const {
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    Scan scan{{}, {}, {}, groups - 1 - t};
    if (warp < 4) {
      if (scan.group >= 0)
#pragma unroll 8
        for (int rank = 0; rank < a.blocks; ++rank)
          scan.own = scan.own + s.groups[rank][scan.group];
      const Tally to = warp_scan(scan.own);
      scan.before = {to.mass - scan.own.mass, to.count - scan.own.count};
      if (lane == 31) s.warps[warp] = to;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i == warp) scan.before = scan.before + scan.all;
      scan.all = scan.all + s.warps[i];
    }
    return scan;
  }
  // The last bucket that the target needs, into s.
  __device__ void choose(const Scan& scan, Tally above, Target target, bool coarse) const {
    auto is_last = [&](Tally from, Tally own) {
      return own.count > 0 && !target.met(from) && target.met(from + own);
    };
    if (threadIdx.x < 128 && is_last(above + scan.before, scan.own)) {
      s.group = scan.group;
      s.above = above + scan.before;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const int bucket = s.group * kGroup + kGroup - 1 - static_cast<int>(threadIdx.x);
      Tally own{};
#pragma unroll 8
      for (int rank = 0; rank < a.blocks; ++rank) {
        const Bucket x = peek(s, bucket, rank);
        own = own + Tally{mass_of(bucket, x, coarse), x.count};
      }
      const Tally to = warp_scan(own);
      const Tally from = s.above + Tally{to.mass - own.mass, to.count - own.count};
      __syncwarp();
      if (is_last(from, own)) {
        s.above = from;
        s.inside = own;
        s.bucket = bucket;
      }
    }
    __syncthreads();
  }

  __device__ Scan coarse() {
    uint32_t count = 0;
    uint64_t mass = 0;
    each_weight([&](int, uint32_t b) {
      if (b >= a.least) {
        const int bucket = static_cast<int>((b - a.least) >> kBucketBits) + 1;
        const uint32_t rest = b & ((1u << kBucketBits) - 1);
        if (N > 0 || !weighs) {
          static_assert(N << kBucketBits < (int64_t{1} << 32) / kThreads, "a carry");
          atomicAdd(s.count + bucket, 1u);
          if (weighs) atomicAdd(s.sum + bucket, rest);
        } else {
          add(bucket, 1, rest);
        }
      } else if (b >= kLeastWeight) {  // most of them, and all would add to one place
        ++count;
        mass += counted(b);
      }
    });
    if (__any_sync(kAllLanes, count > 0)) {
      Tally small{mass, count};
      for (int o = 16; o > 0; o >>= 1) small = small + across(small, o);
      if (threadIdx.x % 32 == 0) add(0, small.count, small.mass);
    }
    share_groups(kGroups, true);
    return scan_groups(kGroups);
  }

  // ---- filters

  // The last key that the target needs; the mass of all. Requires: there are as many, and they
  // weigh as much. `which` filter: each has its own list.
  __device__ uint64_t find(const Scan& scan, Target target, int which, uint64_t& kept) {
    choose(scan, {}, target, true);
    Tally above = s.above, inside = s.inside;
    const bool small = s.bucket == 0;
    uint64_t low = 0;
    if (!small)
      low = static_cast<uint64_t>(a.least + (static_cast<uint32_t>(s.bucket - 1) << kBucketBits))
            << 32;
    int left = 32 + (small ? kSmallBits : kBucketBits);
    uint64_t end = small ? static_cast<uint64_t>(a.least) << 32 : low + (uint64_t{1} << left);
    while (inside.count > kFew && left > 0) {
      const int shift = max(left - kFineBits, 0);
      refined = true;
      barrier();  // no block reads the histograms any more
      clear(1 << kFineBits);
      __syncthreads();
      each_weight([&](int id, uint32_t b) {
        const uint64_t key = key_of(b, id);
        if (b >= kLeastWeight && key >= low && key < end)
          add(static_cast<int>((key - low) >> shift), 1, counted(b));
      });
      share_groups((1 << kFineBits) / kGroup, false);
      choose(scan_groups((1 << kFineBits) / kGroup), above, target, false);
      above = s.above;
      inside = s.inside;
      low += static_cast<uint64_t>(s.bucket) << shift;
      left = shift;
      end = low + (uint64_t{1} << left);
    }
    return among_few(low, end, above, inside.count, target, which, kept);
  }

  __device__ uint64_t among_few(uint64_t low, uint64_t end, Tally above, uint32_t count,
                                Target target, int which, uint64_t& kept) {
    each_weight([&](int id, uint32_t b) {
      const uint64_t key = key_of(b, id);
      if (b >= kLeastWeight && key >= low && key < end)
        s.list[which][atomicAdd(s.listed + which, 1u)] = key;
    });
    __syncthreads();
    const auto t = static_cast<int>(threadIdx.x);
    if (t < a.blocks) give(s.lists[which] + blockIdx.x, t, s.listed[which]);
    barrier();
    // A part of the threads to each block's list.
    const int part = kThreads / a.blocks, of = t / part;
    uint32_t before = 0;
    for (int i = 0; i < of; ++i) before += s.lists[which][i];
    for (uint32_t i = t % part; i < s.lists[which][of]; i += part) {
      const uint64_t key = peek(s.list[which] + i, of);
      s.keys[before + i] = key;
      s.masses[before + i] = counted(static_cast<uint32_t>(key >> 32));
    }
    __syncthreads();
    // As many threads to a key as there are.
    static_assert(kThreads == 2 * kFew);
    uint32_t team = 2;
    while (team < 16 && 2 * team * count <= kThreads) team *= 2;
    const uint32_t at = t / team;
    const bool valid = at < count;
    const uint64_t own = valid ? s.keys[at] : 0;
    Tally larger{};
    if (valid)
      for (uint32_t i = t % team; i < count; i += team)
        if (s.keys[i] > own) larger = larger + Tally{s.masses[i], 1};
    for (uint32_t o = 1; o < team; o *= 2) larger = larger + across(larger, static_cast<int>(o));
    const Tally from = above + larger;
    if (valid && t % team == 0) {
      const Tally with = from + Tally{s.masses[at], 1};
      if (!target.met(from) && target.met(with)) {
        s.cut = own;
        s.kept = with.mass;
      }
    }
    __syncthreads();
    kept = s.kept;
    return s.cut;
  }

  // The least key that top-k and top-p keep.
  __device__ uint64_t filter(int top_k, float top_p) {
    weighs = top_p < 1.0f;
    Scan scan = coarse();
    uint64_t cut = 0, kept = scan.all.mass;
    if (top_k > 0 && static_cast<uint32_t>(top_k) < scan.all.count)
      cut = find(scan, {static_cast<uint32_t>(top_k), 0}, 0, kept);
    if (!weighs) return cut;
    if (refined) {
      barrier();
      clear(kBuckets);
      __syncthreads();
      scan = coarse();
    }
    const double mass = ceil(static_cast<double>(top_p) * static_cast<double>(kept));
    uint64_t ignored;
    return max(cut, find(scan, {1, min(static_cast<uint64_t>(mass), kept)}, 1, ignored));
  }

  // ---- the draw among keys from `cut` on

  __device__ void draw(uint64_t cut, float temperature, int row) {
    const int lane = threadIdx.x % 32, own = blockIdx.x * kWarps + threadIdx.x / 32;
    const float by = fminf(__fdiv_rn(1.0f, temperature), 1e30f);
    auto weight = [&](int i, float logit) -> uint32_t {
      const float distance = __fsub_rn(logit, most);
      if (cut > 0 && key_of(N > 0 ? w[i] : bits(logit), first + i) < cut) return 0;
      return __float_as_uint(weight_of(__fmul_rn(distance, by)));
    };
    uint64_t sum = 0;
    each([&](int i, float logit) {
      const uint32_t made = weight(i, logit);
      if constexpr (N > 0) w[i] = made;
      sum += counted(made);
    });
    const uint64_t to = warp_scan({sum, 0}).mass, of_warp = __shfl_sync(kAllLanes, to, 31);
    if (lane < a.blocks) give(s.shares + own, lane, of_warp);
    barrier();
    uint64_t total = 0, before = 0;
    for (int i = lane; i < a.blocks * kWarps; i += 32) {
      const uint64_t share = s.shares[i];
      total += share;
      if (i < own) before += share;
    }
    for (int o = 16; o > 0; o >>= 1) {
      total += __shfl_xor_sync(kAllLanes, total, o);
      before += __shfl_xor_sync(kAllLanes, before, o);
    }
    const uint64_t wanted =
        min(static_cast<uint64_t>(s.where * static_cast<double>(total)), total - 1);
    before += to - sum;
    if (wanted < before || wanted >= before + sum) return;
    int taken = -1;
    each([&](int i, float logit) {
      before += counted(N > 0 ? w[i] : weight(i, logit));
      if (taken < 0 && before > wanted) taken = first + i;
    });
    take_token(taken, row, a.token, a.walk);
  }
};

template <int N>
__global__ void __launch_bounds__(kThreads) draw_of_row(DrawArgs a) {
  let_next_start();
  if (a.blocks > 1) cluster_arrive();
  extern __shared__ __align__(16) unsigned char shared[];
  auto& s = *reinterpret_cast<DrawShared*>(shared);
  const int row = blockIdx.y;
  Row<N> r{a, s, a.logits[row],
           static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * a.lane_logits};
  r.clear(kBuckets);
  if (threadIdx.x < 2) s.listed[threadIdx.x] = 0;
  wait_for_previous();
  r.load();
  const int32_t* how = a.how[row];
  const float temperature = __int_as_float(how[0]);
  const int top_k = how[1];
  const float top_p = __int_as_float(how[2]), min_p = __int_as_float(how[3]);
  if (threadIdx.x / 32 == kWarps - 1) {
    const int position = a.walk.place != nullptr ? a.walk.place[a.walk.ld + row] + 1 : how[6];
    s.where = where_of({static_cast<uint32_t>(how[4]), static_cast<uint32_t>(how[5])},
                       static_cast<uint32_t>(position));
  }
  const uint32_t order = r.find_most();
  if (order == 0 || !(temperature > 0.0f) || isinf(r.most)) {
    const int token = order == 0 ? -1 : r.first_of_most();
    if (blockIdx.x == 0 && threadIdx.x == 0) take_token(token, row, a.token, a.walk);
    return;
  }
  uint64_t cut = static_cast<uint64_t>(__float_as_uint(min_p)) << 32;
  const bool filters = top_k > 0 || top_p < 1.0f;
  if (filters || cut > 0) r.weigh();
  if (filters) cut = max(cut, r.filter(top_k, top_p));
  r.draw(cut, temperature, row);
}

// Whether it could be started.
template <int N>
bool start(const Queue& queue, const DrawArgs& a, unsigned rows) {
  constexpr size_t kBytes = sizeof(DrawShared);
  if (!allow_shared(draw_of_row<N>, kBytes)) return false;
  prefer_shared(draw_of_row<N>);
  const dim3 grid(static_cast<unsigned>(a.blocks), rows);
  if (a.blocks > kFewBlocks && !allow_clusters(draw_of_row<N>, a.blocks, kThreads, kBytes))
    return false;
  launch_clusters(queue, draw_of_row<N>, grid, kThreads, kBytes, a.blocks, a);
  return true;
}

bool draw_by(const Queue& queue, DrawArgs a, int64_t rows, int blocks) {
  const int64_t each = divide_up(a.vocab, int64_t{blocks} * kThreads);
  a.blocks = blocks;
  a.lane_logits = static_cast<int>(divide_up(each, 4) * 4);
  const auto count = static_cast<unsigned>(rows);
  if (a.lane_logits <= 8) return start<8>(queue, a, count);
  if (a.lane_logits <= 20) return start<20>(queue, a, count);
  if (a.lane_logits <= 36) return start<36>(queue, a, count);
  return start<0>(queue, a, count);
}

}  // namespace

void draw_rows(const Queue& queue, const Operand& logits, const Operand& how, int32_t* token,
               const Walk& walk) {
  int bits = 62;  // all weights together fit
  while (int64_t{1} << (62 - bits) < logits.cols) --bits;
  const int octaves = std::min(kMostOctaves, bits - 23);
  const DrawArgs a{.logits = rows<const float>(logits),
                   .how = rows<const int32_t>(how),
                   .token = token,
                   .walk = walk,
                   .vocab = static_cast<int>(logits.cols),
                   .wide = reinterpret_cast<uintptr_t>(logits.data) % 16 == 0 &&
                           (logits.rows == 1 || logits.ld % 4 == 0),
                   .bits = bits,
                   .least = kOneWeight - (static_cast<uint32_t>(octaves) << 23)};
  if (queue.arch != Arch::kSm90) {
    draw_by(queue, a, logits.rows, 1);
    return;
  }
  if (logits.cols <= kFewLogits || !draw_by(queue, a, logits.rows, kMostBlocks))
    draw_by(queue, a, logits.rows, kFewBlocks);
}

}  // namespace wick::cuda
