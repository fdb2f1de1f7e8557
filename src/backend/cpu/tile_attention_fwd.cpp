// SPDX-License-Identifier: Apache-2.0
// attention forward in tiles, from bf16 operands: bound by 2^x and the products alike on AMX, by
// packing v when decoding; by dots bound by the products. T = 512 causal, 14 heads of 64 on 2: 1.0
// ms on one thread of Emerald Rapids with AMX, 1.5 on two of Zen 4 by dots (2026-11).
//
// A task is a chunk of rows with one begin and a kv head; with few rows, also a stretch of keys.
// Stretches are counted from begin and joined in order. Which thread takes which stretch, how rows
// are cut into chunks and what lies beside a segment leave no trace in a row's bits.
#include "backend/cpu/tile_attention.h"
#include "backend/cpu/tile_attention_fwd-inl.h"

#if WICK_CPU_BF16
#include "base/threads.h"

namespace wick::cpu::tile_attention {
namespace {

Forward forward_of(const StepArgs& args) {
  const bool lse = args.out.size() > 1 && args.out[1];
  return {Heads(attr<AttentionAttr>(*args.step)),
          Halves(args.in[0]),
          Halves(args.in[1]),
          Halves(args.in[2]),
          Halves(args.out[0]),
          lse ? args.out[1].as<float>() : nullptr,
          lse ? args.out[1].ld : 0,
          args.in[0].rows,
          args.in[3].as<const int32_t>(),
          args.in[4].as<const int32_t>()};
}

bool is_lone(const Forward& f, int64_t t) {
  return f.end[t] - f.first(t) == 1 && (t == 0 || f.begin[t - 1] != f.begin[t]) &&
         (t + 1 == f.tokens || f.begin[t + 1] != f.begin[t]);
}

Chunk chunk_at(const Forward& f, int64_t t0, int64_t t1) {
  Chunk c{t0, t1, INT64_MAX, 0};
  for (int64_t t = t0; t < t1; ++t)
    if (f.first(t) < f.end[t]) {
      c.first = least(c.first, f.first(t));
      c.last = most(c.last, f.end[t]);
    }
  if (c.last == 0) c.first = 0;
  return c;
}

// Stretches are counted from begin; those before `first` hold nothing.
int64_t first_stretch(const Forward& f, const Chunk& c) {
  return c.first < c.last ? (c.first - f.begin[c.t0]) / kStretch : 0;
}
int64_t stop_stretch(const Forward& f, const Chunk& c) {
  return c.first < c.last ? up(c.last - f.begin[c.t0], kStretch) / kStretch : 0;
}
template <typename Multiplier>
void attend_stretch(const Forward& f, const Work& w, const Chunk& c, int64_t kv, int64_t s) {
  const int64_t start = f.begin[c.t0] + s * kStretch;
  attend<Multiplier>(f, w, c, kv, start, least(c.last, start + kStretch));
}

// Where the tasks of a step find their chunks, and the results of stretches that are shared out.
struct Shared {
  int32_t *starts, *parts, *units;  // by chunk: first position, first part, first stretch of it
  std::byte* sums;
  int64_t part_tiles, bytes;
  Shared(const StepArgs& args, const Heads& h, std::byte* base) {
    Carve carve(base);
    const int64_t tokens = args.in[0].rows;
    starts = carve.take<int32_t>(tokens + 1);
    parts = carve.take<int32_t>(tokens + 1);
    units = carve.take<int32_t>(tokens + 1);
    // Ranges that lie side by side fill no more than this; where they overlap, nothing is shared
    // out.
    part_tiles = 0;
    if (tokens <= kFewTokens && args.in[1].rows > kStretch)
      part_tiles = (args.in[1].rows / kStretch + 2 * tokens) * chunk_tiles(h, 1);
    sums = carve.take<std::byte>(part_tiles * h.kv_heads * tile_bytes(h));
    bytes = carve.used();
  }
  static int64_t tile_bytes(const Heads& h) { return h.e_tiles * kTileSize + 2 * kTile * 4; }
  Sums part(const Heads& h, int64_t index, int64_t tiles) const {
    std::byte* at = sums + index * tile_bytes(h);
    float* top = reinterpret_cast<float*>(at + tiles * h.e_tiles * kTileSize);
    return {at, top, top + tiles * kTile};
  }
};

void copy_sums(const Heads& h, const Sums& from, const Sums& to, int64_t tiles) {
  __builtin_memcpy(to.values, from.values, static_cast<size_t>(tiles * h.e_tiles * kTileSize));
  __builtin_memcpy(to.top, from.top, static_cast<size_t>(tiles * kTile) * sizeof(float));
  __builtin_memcpy(to.total, from.total, static_cast<size_t>(tiles * kTile) * sizeof(float));
}

// All stretches of a chunk in order, on this thread.
template <typename Multiplier>
void run_chunk(const Forward& f, const Work& w, const Chunk& c, int64_t kv) {
  pack_queries(f, w, c, kv);
  const int64_t s0 = first_stretch(f, c), s1 = stop_stretch(f, c);
  if (s1 - s0 <= 1) {
    attend_stretch<Multiplier>(f, w, c, kv, s0);
    return finish(f, c, kv, w.stretch);
  }
  const int64_t tiles = chunk_tiles(f.heads, c.t1 - c.t0);
  clear(f.heads, w.joined, tiles);
  for (int64_t s = s0; s < s1; ++s) {
    attend_stretch<Multiplier>(f, w, c, kv, s);
    join(f.heads, w.joined, w.stretch, tiles);
  }
  finish(f, c, kv, w.joined);
}

// Stretches of all chunks side by side, then joined by chunk.
template <typename Multiplier>
void run_stretches(const Forward& f, const Shared& shared, int64_t chunks, std::byte* works,
                   int64_t work_bytes, ThreadPool& pool) {
  const Heads& h = f.heads;
  auto chunk_of = [&](int64_t i) { return chunk_at(f, shared.starts[i], shared.starts[i + 1]); };
  auto part_of = [&](const Chunk& c, int64_t i, int64_t kv, int64_t s) {
    const int64_t tiles = chunk_tiles(h, c.t1 - c.t0);
    return shared.part(
        h, kv * shared.part_tiles + shared.parts[i] + (s - first_stretch(f, c)) * tiles, tiles);
  };
  const int64_t units = shared.units[chunks];
  pool.parallel(units * h.kv_heads, [&](int64_t task, int worker) {
    const int64_t unit = task / h.kv_heads, kv = task % h.kv_heads;
    int64_t i = 0;
    while (shared.units[i + 1] <= unit) ++i;
    const Work w(h, works + worker * work_bytes);
    const Chunk c = chunk_of(i);
    const int64_t s = first_stretch(f, c) + unit - shared.units[i];
    Multiplier::begin();
    pack_queries(f, w, c, kv);
    attend_stretch<Multiplier>(f, w, c, kv, s);
    Multiplier::end();
    copy_sums(h, w.stretch, part_of(c, i, kv, s), chunk_tiles(h, c.t1 - c.t0));
  });
  pool.parallel(chunks * h.kv_heads, [&](int64_t task, int worker) {
    const int64_t i = task / h.kv_heads, kv = task % h.kv_heads;
    const Work w(h, works + worker * work_bytes);
    const Chunk c = chunk_of(i);
    if (is_lone(f, c.t0)) return copy_values(f, c.t0, c.t1, kv);
    const int64_t tiles = chunk_tiles(h, c.t1 - c.t0);
    clear(h, w.joined, tiles);
    for (int64_t s = first_stretch(f, c); s < stop_stretch(f, c); ++s)
      join(h, w.joined, part_of(c, i, kv, s), tiles);
    finish(f, c, kv, w.joined);
  });
}

template <typename Multiplier>
void attention_fwd(const StepArgs& args) {
  const Forward f = forward_of(args);
  const Heads& h = f.heads;
  std::byte* base = aligned(args.scratch);
  const Shared shared(args, h, base);
  const int64_t work_bytes = Work(h, nullptr).bytes;
  std::byte* works = base + shared.bytes;

  // Small enough for every thread to have work; the cut is not seen in the results.
  const int64_t wanted = up(2 * args.pool->threads(), h.kv_heads) / h.kv_heads;
  const int64_t positions = most(1, least(chunk_positions(h), up(f.tokens, wanted) / wanted));
  int64_t chunks = 0, tiles = 0, units = 0;
  for (int64_t t0 = 0, t1; t0 < f.tokens; t0 = t1) {
    const int64_t stop = least(f.tokens, t0 + positions);
    const bool lone = is_lone(f, t0);
    for (t1 = t0 + 1; t1 < stop && (lone ? is_lone(f, t1) : f.begin[t1] == f.begin[t0]);) ++t1;
    const Chunk c = chunk_at(f, t0, t1);
    const int64_t stretches = lone ? 0 : stop_stretch(f, c) - first_stretch(f, c);
    shared.starts[chunks] = static_cast<int32_t>(t0);
    shared.parts[chunks] = static_cast<int32_t>(tiles);
    shared.units[chunks] = static_cast<int32_t>(units);
    tiles += stretches * chunk_tiles(h, t1 - t0);
    units += stretches;
    ++chunks;
  }
  shared.starts[chunks] = static_cast<int32_t>(f.tokens);
  shared.units[chunks] = static_cast<int32_t>(units);
  if (units > chunks && tiles <= shared.part_tiles)
    return run_stretches<Multiplier>(f, shared, chunks, works, work_bytes, *args.pool);
  args.pool->parallel(chunks * h.kv_heads, [&](int64_t i, int worker) {
    // Later rows see more keys: the longest chunks first.
    const int64_t chunk = chunks - 1 - i / h.kv_heads;
    const int64_t t0 = shared.starts[chunk], t1 = shared.starts[chunk + 1];
    if (is_lone(f, t0)) return copy_values(f, t0, t1, i % h.kv_heads);
    const Work w(h, works + worker * work_bytes);
    Multiplier::begin();
    run_chunk<Multiplier>(f, w, chunk_at(f, t0, t1), i % h.kv_heads);
    Multiplier::end();
  });
}

size_t attention_fwd_scratch(const StepArgs& args, int threads) {
  const Heads h(attr<AttentionAttr>(*args.step));
  return static_cast<size_t>(64 + Shared(args, h, nullptr).bytes +
                             Work(h, nullptr).bytes * threads);
}

bool attention_fwd_accepts(const StepArgs& args) {
  for (int i = 0; i < 3; ++i)
    if (!is_bf16(args.in[static_cast<size_t>(i)])) return false;
  return is_bf16(args.out[0]) && takes_heads(args);
}

}  // namespace

Candidate forward(Rung rung) {
  return {Op::kAttention,        Dir::kForward,
          "attention_fwd_tiles", rung == Rung::kAmx ? attention_fwd<AmxTiles> : attention_fwd<Dots>,
          attention_fwd_accepts, attention_fwd_scratch};
}

}  // namespace wick::cpu::tile_attention
#endif
