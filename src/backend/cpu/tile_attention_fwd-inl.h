// SPDX-License-Identifier: Apache-2.0
// attention forward in tiles of bf16, one chunk of rows against a stretch of keys; the tasks are in
// tile_attention_fwd.cpp, which alone includes this file.
//
// Keys are taken in blocks counted from the stretch's start. A running maximum moves only when it
// would grow by more than kSlack, so sums are rarely rescaled.
#pragma once

#include "backend/cpu/tile_attention-inl.h"

#if WICK_CPU_BF16
namespace wick::cpu::tile_attention {
namespace {

constexpr int64_t kKeys = 64;       // of a block
constexpr int64_t kStretch = 512;   // keys that one task takes when decoding
constexpr int64_t kRows = 448;      // of a chunk, about
constexpr int64_t kFewTokens = 16;  // at most so many: stretches are shared out
constexpr float kNoScore = -1.0e30f;
constexpr float kSlack = 8.0f;  // of a score in base 2

struct Forward {
  Heads heads;
  Halves q, k, v, y;
  float* lse;
  int64_t lse_ld, tokens;
  const int32_t *begin, *end;

  int64_t first(int64_t t) const {
    return heads.window > 0 ? most(begin[t], end[t] - heads.window) : begin[t];
  }
};

// Rows [t0, t1), all with one begin, of the heads that share a kv head.
struct Chunk {
  int64_t t0, t1, first, last;  // keys that any of them sees; first = last: none
};

// Running results of a chunk's tiles of 16 rows: tiles [16 of e][16 rows] of sums, and by row the
// maximum in base 2 and the sum of the probabilities; both 0 sums where no key was seen.
struct Sums {
  std::byte* values;
  float *top, *total;
};

int64_t chunk_positions(const Heads& h) { return most(1, kRows / h.group); }
int64_t chunk_tiles(const Heads& h, int64_t positions) {
  return up(positions * h.group, kTile) / kTile;
}
Sums take_sums(Carve& carve, const Heads& h, int64_t tiles) {
  return {carve.tiles(tiles * h.e_tiles), carve.take<float>(tiles * kTile),
          carve.take<float>(tiles * kTile)};
}

// One thread's scratch.
struct Work {
  std::byte *q, *k, *v, *scores[3];
  Sums stretch, joined;
  int32_t *low, *high;
  Bounds* bounds;
  uint8_t* seen;  // by pair of tiles
  int64_t bytes;
  Work(const Heads& h, std::byte* base) {
    Carve carve(base);
    const int64_t tiles = up(chunk_tiles(h, chunk_positions(h)), 2);
    q = carve.tiles(tiles * h.steps);
    k = carve.tiles(kKeys / kTile * h.steps);
    v = carve.tiles(kKeys / kStep * h.e_tiles);
    for (std::byte*& s : scores) s = carve.tiles(2 * kKeys / kTile);
    stretch = take_sums(carve, h, tiles);
    joined = take_sums(carve, h, tiles);
    low = carve.take<int32_t>(tiles * kTile);
    high = carve.take<int32_t>(tiles * kTile);
    bounds = carve.take<Bounds>(tiles);
    seen = carve.take<uint8_t>(tiles);
    bytes = carve.used();
  }
};

}  // namespace
}  // namespace wick::cpu::tile_attention

WICK_BF16_BEGIN
namespace wick::cpu::tile_attention {
namespace {

constexpr int64_t kScores = kKeys / kTile * kTileSize;  // bytes of one tile of rows

// ln x for x >= 1, from x = m 2^k with m around 1 and the series of ln((1 + s) / (1 - s)).
inline Vec log_v(Vec x) {
  Vec k = _mm512_getexp_ps(x);
  Vec m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
  const __mmask16 large = _mm512_cmp_ps_mask(m, _mm512_set1_ps(1.41421356f), _CMP_GT_OQ);
  k = _mm512_mask_add_ps(k, large, k, _mm512_set1_ps(1.0f));
  m = _mm512_mask_mul_ps(m, large, m, _mm512_set1_ps(0.5f));
  const Vec f = _mm512_sub_ps(m, _mm512_set1_ps(1.0f));
  const Vec s = _mm512_div_ps(f, _mm512_add_ps(m, _mm512_set1_ps(1.0f)));
  const Vec z = _mm512_mul_ps(s, s);
  Vec p = _mm512_set1_ps(2.0f / 9);
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0f / 7));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0f / 5));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0f / 3));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0f));
  return _mm512_fmadd_ps(k, _mm512_set1_ps(kLn2), _mm512_mul_ps(p, s));
}

void pack_queries(const Forward& f, const Work& w, const Chunk& c, int64_t kv) {
  const Heads& h = f.heads;
  const int64_t rows = (c.t1 - c.t0) * h.group, tiles = up(rows, kTile) / kTile;
  RowWalk walk{f.q.at(c.t0, kv * h.group * h.e), f.q.ld, h.e, h.group, rows};
  for (int64_t t = 0; t < tiles; ++t) {
    const uint16_t* from[kTile];
    for (const uint16_t*& row : from) row = walk.next();
    pack_right(from, h, w.q + t * h.steps * kTileSize);
  }
  int32_t *low = w.low, *high = w.high;
  for (int64_t t = c.t0; t < c.t1; ++t)
    for (int64_t g = 0; g < h.group; ++g) {
      *low++ = static_cast<int32_t>(f.first(t));
      *high++ = f.end[t];
    }
  // Rows past the end are zeros that look where the last one does.
  for (; low < w.low + tiles * kTile; ++low, ++high) *low = low[-1], *high = high[-1];
  for (int64_t t = 0; t < tiles; ++t) {
    const __m512i lo = _mm512_load_si512(w.low + t * kTile);
    const __m512i hi = _mm512_load_si512(w.high + t * kTile);
    w.bounds[t] = {_mm512_reduce_min_epi32(lo), _mm512_reduce_max_epi32(lo),
                   _mm512_reduce_min_epi32(hi), _mm512_reduce_max_epi32(hi)};
  }
}

void pack_keys(const Forward& f, const Work& w, int64_t kv, int64_t j0, int64_t keys) {
  const Heads& h = f.heads;
  for (int64_t j = 0; j < keys; j += kStep) {
    const uint16_t *k[kStep], *v[kStep];
    for (int64_t i = 0; i < kStep; ++i) {
      const bool there = j + i < keys;
      k[i] = there ? f.k.at(j0 + j + i, kv * h.e) : nullptr;
      v[i] = there ? f.v.at(j0 + j + i, kv * h.e) : nullptr;
      bring_row(f.k.at(j0 + j + i + kKeys, kv * h.e), h.e);
      bring_row(f.v.at(j0 + j + i + kKeys, kv * h.e), h.e);
    }
    std::byte* to = w.k + j / kTile * h.steps * kTileSize;
    pack_left(k, h, to);
    pack_left(k + kTile, h, to + h.steps * kTileSize);
    pack_left_rows(v, h, w.v + j / kStep * h.e_tiles * kTileSize);
  }
}

// A pair of tiles of rows against a block of keys.
struct Pair {
  int64_t tile;        // the first of them
  int columns;         // 1 or 2
  int64_t from, stop;  // keys of the block that any row sees, in whole steps
  bool seen;           // the rows have seen keys of this stretch before
  std::byte* scores;
};

// Of the block's keys [from, stop).
template <typename Multiplier>
void make_scores(const Work& w, const Heads& h, const Pair& p, int64_t from, int64_t stop) {
  const Tiles q{w.q + p.tile * h.steps * kTileSize, h.steps * kTileSize, kTileSize};
  for (int64_t j = most(from, p.from); j < least(stop, p.stop); j += kStep) {
    const int64_t tile = j / kTile;
    const Tiles k{w.k + tile * h.steps * kTileSize, h.steps * kTileSize, kTileSize};
    std::byte* c = p.scores + tile * kTileSize;
    if (p.columns == 2)
      Multiplier::template multiply<2, false>(k, q, h.steps, c, kTileSize, kScores);
    else
      Multiplier::template multiply<1, false>(k, q, h.steps, c, kTileSize, kScores);
  }
  memory_fence();
}

// Scores of one tile of rows into probabilities relative to the running maximum, rounded and as the
// right tiles [16 pairs of keys][16 rows][2] of each step, where its first scores lay.
template <bool Masked>
void soften(const Work& w, const Heads& h, const Pair& p, int64_t column, int64_t j0) {
  const int64_t tile = p.tile + column;
  float* s = reinterpret_cast<float*>(p.scores + column * kScores);
  const __m512i low = _mm512_sub_epi32(_mm512_load_si512(w.low + tile * kTile),
                                       _mm512_set1_epi32(static_cast<int32_t>(j0)));
  const __m512i high = _mm512_sub_epi32(_mm512_load_si512(w.high + tile * kTile),
                                        _mm512_set1_epi32(static_cast<int32_t>(j0)));
  Vec tops[4];
  WICK_UNROLL
  for (int i = 0; i < 4; ++i) tops[i] = _mm512_set1_ps(-__builtin_inff());
  for (int64_t j = p.from; j < p.stop; j += 4) {
    WICK_UNROLL
    for (int i = 0; i < 4; ++i)
      tops[i] = _mm512_mask_max_ps(tops[i], inside<Masked>(low, high, j + i), tops[i],
                                   _mm512_load_ps(s + (j + i) * kTile));
  }
  const Vec factor = _mm512_set1_ps(h.scale * kLog2E);
  const Vec block = _mm512_mul_ps(
      _mm512_max_ps(_mm512_max_ps(tops[0], tops[1]), _mm512_max_ps(tops[2], tops[3])), factor);
  float *top = w.stretch.top + tile * kTile, *total = w.stretch.total + tile * kTile;
  const Vec old = _mm512_load_ps(top);
  const __mmask16 moved =
      _mm512_cmp_ps_mask(block, _mm512_add_ps(old, _mm512_set1_ps(kSlack)), _CMP_GT_OQ);
  const Vec now = _mm512_mask_mov_ps(old, moved, block);
  Vec sum0 = _mm512_setzero_ps(), sum1 = sum0;
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (int64_t step = p.from; step < p.stop; step += kStep) {
    float* at = s + step * kTile;
    for (int64_t i = 0; i < kTile; i += 2) {
      Vec e[4];
      WICK_UNROLL
      for (int u = 0; u < 4; ++u) {
        const int64_t j = 2 * i + u;
        const Vec x = _mm512_fmsub_ps(_mm512_load_ps(at + j * kTile), factor, now);
        e[u] = _mm512_maskz_mov_ps(inside<Masked>(low, high, step + j), exp2_v(x));
      }
      sum0 = _mm512_add_ps(sum0, _mm512_add_ps(e[0], e[1]));
      sum1 = _mm512_add_ps(sum1, _mm512_add_ps(e[2], e[3]));
      _mm512_store_si512(at + i * kTile, _mm512_permutexvar_epi16(order, round_pair(e[0], e[1])));
      _mm512_store_si512(at + (i + 1) * kTile,
                         _mm512_permutexvar_epi16(order, round_pair(e[2], e[3])));
    }
  }
  Vec sum = _mm512_add_ps(sum0, sum1);
  if (moved != 0 && p.seen) {
    const Vec less = exp2_v(_mm512_sub_ps(old, now));
    float* values = reinterpret_cast<float*>(w.stretch.values + tile * h.e_tiles * kTileSize);
    for (int64_t i = 0; i < h.e_tiles * kTile; ++i)
      _mm512_store_ps(values + i * kTile, _mm512_mul_ps(_mm512_load_ps(values + i * kTile), less));
    sum = _mm512_fmadd_ps(_mm512_load_ps(total), less, sum);
  } else if (p.seen) {
    sum = _mm512_add_ps(_mm512_load_ps(total), sum);
  }
  _mm512_store_ps(total, sum);
  _mm512_store_ps(top, now);
}

// Tiles [from, stop) of e.
template <typename Multiplier, int Columns, bool Continue>
void add_values(const Work& w, const Heads& h, const Pair& p, int64_t from, int64_t stop) {
  const int64_t row = h.e_tiles * kTileSize;
  const Tiles right{p.scores + p.from / kTile * kTileSize, kScores, 2 * kTileSize};
  for (int64_t t = from; t < stop; t += 2)
    Multiplier::template multiply<Columns, Continue>(
        {w.v + (p.from / kStep * h.e_tiles + t) * kTileSize, kTileSize, row}, right,
        (p.stop - p.from) / kStep, w.stretch.values + p.tile * row + t * kTileSize, kTileSize, row);
}
template <typename Multiplier>
void add_values(const Work& w, const Heads& h, const Pair& p, int64_t from, int64_t stop) {
  memory_fence();
  if (p.columns == 2)
    (p.seen ? add_values<Multiplier, 2, true> : add_values<Multiplier, 2, false>)(w, h, p, from,
                                                                                  stop);
  else if (p.columns == 1)
    (p.seen ? add_values<Multiplier, 1, true> : add_values<Multiplier, 1, false>)(w, h, p, from,
                                                                                  stop);
  memory_fence();
}

// The next pair at or after a tile that sees any of the keys; none: no columns.
Pair find_pair(const Work& w, int64_t tile, int64_t tiles, int64_t j0, int64_t keys) {
  for (; tile < tiles; tile += 2) {
    Pair p{tile, tile + 1 < tiles ? 2 : 1, 0, 0, w.seen[tile / 2] != 0, nullptr};
    const Bounds &a = w.bounds[tile], &b = w.bounds[tile + p.columns - 1];
    const int64_t low = most(0, least(a.low_min, b.low_min) - j0);
    const int64_t high = least(keys, most(a.high_max, b.high_max) - j0);
    if (low >= high) continue;
    p.from = low / kStep * kStep;
    p.stop = up(high, kStep);
    return p;
  }
  return {tiles, 0, 0, 0, false, nullptr};
}

// Keys [start, stop) of a chunk whose queries are packed, into w.stretch.
template <typename Multiplier>
void attend(const Forward& f, const Work& w, const Chunk& c, int64_t kv, int64_t start,
            int64_t stop) {
  const Heads& h = f.heads;
  const int64_t tiles = chunk_tiles(h, c.t1 - c.t0);
  for (int64_t i = 0; i < tiles * kTile; ++i)
    w.stretch.top[i] = kNoScore, w.stretch.total[i] = 0.0f;
  for (int64_t i = 0; i < tiles; i += 2) w.seen[i / 2] = 0;
  for (int64_t j0 = start; j0 < stop; j0 += kKeys) {
    const int64_t keys = least(kKeys, stop - j0);
    if (j0 + keys <= c.first) continue;
    pack_keys(f, w, kv, j0, keys);
    // Products of the next pair's scores and of the values before run while this pair's vectors do:
    // cut in two, because the processor looks some hundred operations ahead.
    Pair before{0, 0, 0, 0, false, nullptr}, p = find_pair(w, 0, tiles, j0, keys);
    p.scores = w.scores[0];
    make_scores<Multiplier>(w, h, p, 0, p.columns > 0 ? kKeys : 0);
    for (int turn = 1; p.columns > 0; turn = (turn + 1) % 3) {
      Pair next = find_pair(w, p.tile + 2, tiles, j0, keys);
      next.scores = w.scores[turn];
      for (int i = 0; i < 2; ++i) {
        const int64_t half = h.steps & ~int64_t{1};  // of the tiles of e, which are 2 * steps
        add_values<Multiplier>(w, h, before, i == 0 ? 0 : half, i == 0 ? half : h.e_tiles);
        make_scores<Multiplier>(w, h, next, i * kKeys / 2, (i + 1) * kKeys / 2);
        if (i >= p.columns) continue;
        const Bounds& b = w.bounds[p.tile + i];
        const bool whole = b.low_max <= j0 + p.from && b.high_min >= j0 + p.stop;
        (whole ? soften<false> : soften<true>)(w, h, p, i, j0);
      }
      w.seen[p.tile / 2] = 1;
      before = p;
      p = next;
    }
    add_values<Multiplier>(w, h, before, 0, h.e_tiles);
  }
  for (int64_t i = 0; i < tiles; ++i)
    if (w.seen[i / 2] == 0)
      for (int64_t n = 0; n < h.e_tiles * kTile; ++n)
        _mm512_store_si512(w.stretch.values + i * h.e_tiles * kTileSize + n * 64,
                           _mm512_setzero_si512());
}

void clear(const Heads& h, const Sums& to, int64_t tiles) {
  for (int64_t i = 0; i < tiles * kTile; ++i) to.top[i] = kNoScore, to.total[i] = 0.0f;
  for (int64_t i = 0; i < tiles * h.e_tiles * kTile; ++i)
    _mm512_store_si512(to.values + i * 64, _mm512_setzero_si512());
}

inline void mix(float* to, Vec a, const float* other, Vec b) {
  _mm512_store_ps(to,
                  _mm512_fmadd_ps(_mm512_load_ps(other), b, _mm512_mul_ps(_mm512_load_ps(to), a)));
}

// The results of a later stretch into those of all before it.
void join(const Heads& h, const Sums& into, const Sums& from, int64_t tiles) {
  for (int64_t t = 0; t < tiles; ++t) {
    const Vec old = _mm512_load_ps(into.top + t * kTile),
              add = _mm512_load_ps(from.top + t * kTile);
    const Vec top = _mm512_max_ps(old, add);
    const Vec a = exp2_v(_mm512_sub_ps(old, top)), b = exp2_v(_mm512_sub_ps(add, top));
    _mm512_store_ps(into.top + t * kTile, top);
    mix(into.total + t * kTile, a, from.total + t * kTile, b);
    float* to = reinterpret_cast<float*>(into.values + t * h.e_tiles * kTileSize);
    const float* other = reinterpret_cast<const float*>(from.values + t * h.e_tiles * kTileSize);
    for (int64_t i = 0; i < h.e_tiles * kTile; ++i) mix(to + i * kTile, a, other + i * kTile, b);
  }
}

// Rows that see one key and share it with no other: y = v, lse = the score.
void copy_values(const Forward& f, int64_t t0, int64_t t1, int64_t kv) {
  const Heads& h = f.heads;
  for (int64_t t = t0; t < t1; ++t) {
    const uint16_t *k = f.k.at(f.first(t), kv * h.e), *v = f.v.at(f.first(t), kv * h.e);
    for (int64_t g = kv * h.group; g < (kv + 1) * h.group; ++g) {
      Vec sum = _mm512_setzero_ps();
      for (int64_t s = 0; s < h.steps; ++s) {
        _mm512_mask_storeu_epi16(f.y.at(t, g * h.e) + s * kStep, first_of(h.e - s * kStep),
                                 load_step(v, s, h.e));
        sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(load_step(k, s, h.e)),
                               reinterpret_cast<__m512bh>(load_step(f.q.at(t, g * h.e), s, h.e)));
      }
      if (f.lse != nullptr) f.lse[t * f.lse_ld + g] = h.scale * _mm512_reduce_add_ps(sum);
    }
  }
}

void finish(const Forward& f, const Chunk& c, int64_t kv, const Sums& from) {
  const Heads& h = f.heads;
  const int64_t rows = (c.t1 - c.t0) * h.group, tiles = up(rows, kTile) / kTile;
  RowWalk walk{f.y.at(c.t0, kv * h.group * h.e), f.y.ld, h.e, h.group, rows};
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const Vec total = _mm512_load_ps(from.total + tile * kTile);
    const __mmask16 some = _mm512_cmp_ps_mask(total, _mm512_setzero_ps(), _CMP_GT_OQ);
    const Vec factor = _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0f), total);
    const Vec lse = _mm512_mask_fmadd_ps(_mm512_load_ps(from.top + tile * kTile), some,
                                         _mm512_set1_ps(kLn2), log_v(total));
    alignas(64) float sums[kTile];
    _mm512_store_ps(sums, lse);
    uint16_t* to[kTile];
    for (uint16_t*& row : to) row = walk.next<true>();
    for (int64_t i = 0; f.lse != nullptr && i < kTile && tile * kTile + i < rows; ++i) {
      const int64_t r = tile * kTile + i;
      f.lse[(c.t0 + r / h.group) * f.lse_ld + kv * h.group + r % h.group] =
          (some >> i & 1) ? sums[i] : -__builtin_inff();
    }
    for (int64_t i = 0; i * kTile < h.e; ++i)
      unpack_tile(from.values + (tile * h.e_tiles + i) * kTileSize, factor, to, i * kTile,
                  least(kTile, h.e - i * kTile));
  }
}

}  // namespace
}  // namespace wick::cpu::tile_attention
WICK_BF16_END
#endif
