// SPDX-License-Identifier: Apache-2.0
// attention backward in tiles of bf16, one chunk of rows against the keys of its part; the tasks
// are in tile_attention_bwd.cpp, which alone includes this file.
//
// Rows and keys are counted from the part's start; every sum runs over 32 rows or 32 keys at a
// time, in order, from where the block before left it in f32.
#pragma once

#include "backend/cpu/tile_attention-inl.h"

#if WICK_CPU_BF16
namespace wick::cpu::tile_attention {
namespace {

constexpr int64_t kKeys = 64;        // of a block
constexpr int64_t kBlockRows = 128;  // rows whose probabilities are held at once
constexpr int64_t kRows = 448;       // of a chunk, about
constexpr int64_t kOwned = 256;      // keys of a task of its own for dk and dv
constexpr int64_t kMostKeys = 8192;  // of a part that is made in one pass
constexpr int64_t kSteps = kBlockRows / kStep, kRowTiles = kBlockRows / kTile;

struct Backward {
  Heads heads;
  Halves dy, q, k, v, y, dq, dk, dv;
  const float* lse;
  int64_t lse_ld, tokens;
  const int32_t* begin;

  int64_t first(int64_t t) const {
    return heads.window > 0 ? most(begin[t], t + 1 - heads.window) : begin[t];
  }
};

// What a pass over a chunk of rows makes.
struct Wants {
  bool dq, dk, dv;
};

// Whole steps of rows, so that chunks keep the grid of the sums.
int64_t chunk_positions(const Heads& h) { return most(1, kRows / h.group / kStep) * kStep; }
int64_t owned_keys(int64_t tokens) { return least(up(tokens, kOwned), kMostKeys); }

// p and ds of a block of keys and kBlockRows rows, rounded.
struct Block {
  std::byte *p, *ds;   // left tiles [16 keys][32 rows]
  std::byte* ds_keys;  // right tiles [16 pairs of keys][16 rows][2]
};

// One thread's scratch.
struct Work {
  std::byte *q, *dy, *q_rows, *dy_rows, *dq;  // of a chunk
  float *shift, *delta;                       // by row: lse in base 2, dy · y
  int32_t *low, *high;                        // keys of the part that a row sees
  Bounds* bounds;                             // by pair of tiles of rows
  std::byte *k, *k_rows, *v;                  // of a block of keys
  Block blocks[2];                            // of a block of keys and kBlockRows rows
  std::byte* stage[2];                        // scores, then dy·v: 2 x 2 tiles each
  std::byte *dk, *dv;
  int64_t bytes;
  Work(const Heads& h, int64_t tokens, std::byte* base) {
    Carve carve(base);
    const int64_t tiles = chunk_positions(h) * h.group / kTile;
    q = carve.tiles(tiles * h.steps);
    dy = carve.tiles(tiles * h.steps);
    q_rows = carve.tiles(tiles / 2 * h.e_tiles);
    dy_rows = carve.tiles(tiles / 2 * h.e_tiles);
    dq = carve.tiles(tiles * h.e_tiles);
    shift = carve.take<float>(tiles * kTile);
    delta = carve.take<float>(tiles * kTile);
    low = carve.take<int32_t>(tiles * kTile);
    high = carve.take<int32_t>(tiles * kTile);
    bounds = carve.take<Bounds>(tiles / 2);
    k = carve.tiles(kKeys / kTile * h.steps);
    v = carve.tiles(kKeys / kTile * h.steps);
    k_rows = carve.tiles(kKeys / kStep * h.e_tiles);
    for (Block& b : blocks)
      b = {carve.tiles(kKeys / kTile * kSteps), carve.tiles(kKeys / kTile * kSteps),
           carve.tiles(kKeys / kStep * kRowTiles)};
    for (std::byte*& s : stage) s = carve.tiles(8);
    dk = carve.tiles(owned_keys(tokens) / kTile * h.e_tiles);
    dv = carve.tiles(owned_keys(tokens) / kTile * h.e_tiles);
    bytes = carve.used();
  }
};

}  // namespace
}  // namespace wick::cpu::tile_attention

WICK_BF16_BEGIN
namespace wick::cpu::tile_attention {
namespace {

void clear_tiles(std::byte* at, int64_t tiles) {
  for (int64_t i = 0; i < tiles * kTile; ++i)
    _mm512_store_si512(at + i * 64, _mm512_setzero_si512());
}

inline __m512bh halves(__m512i v) { return reinterpret_cast<__m512bh>(v); }

// Positions [t0, t1) of a part that starts at `start`.
void pack_rows(const Backward& b, const Work& w, int64_t kv, int64_t start, int64_t t0, int64_t t1,
               const Wants& wants) {
  const Heads& h = b.heads;
  const int64_t rows = (t1 - t0) * h.group, tiles = up(rows, kStep) / kTile;
  RowWalk q{b.q.at(t0, kv * h.group * h.e), b.q.ld, h.e, h.group, rows};
  RowWalk dy{b.dy.at(t0, kv * h.group * h.e), b.dy.ld, h.e, h.group, rows};
  RowWalk y{b.y.at(t0, kv * h.group * h.e), b.y.ld, h.e, h.group, rows};
  for (int64_t t = 0; t < tiles; t += 2) {
    const uint16_t *from[kStep], *other[kStep];
    for (int64_t i = 0; i < kStep; ++i) {
      from[i] = q.next();
      other[i] = dy.next();
      const uint16_t* made = y.next();
      Vec sum = _mm512_setzero_ps();
      for (int64_t s = 0; made != nullptr && s < h.steps; ++s)
        sum = _mm512_dpbf16_ps(sum, halves(load_step(other[i], s, h.e)),
                               halves(load_step(made, s, h.e)));
      w.delta[t * kTile + i] = _mm512_reduce_add_ps(sum);
    }
    for (int64_t i = 0; i < 2; ++i) {
      pack_right(from + i * kTile, h, w.q + (t + i) * h.steps * kTileSize);
      pack_right(other + i * kTile, h, w.dy + (t + i) * h.steps * kTileSize);
    }
    if (wants.dk) pack_right_rows(from, h, w.q_rows + t / 2 * h.e_tiles * kTileSize);
    if (wants.dv) pack_right_rows(other, h, w.dy_rows + t / 2 * h.e_tiles * kTileSize);
  }
  int64_t r = 0;
  for (int64_t t = t0; t < t1; ++t)
    for (int64_t g = 0; g < h.group; ++g, ++r) {
      w.shift[r] = b.lse[t * b.lse_ld + kv * h.group + g] * kLog2E;
      w.low[r] = static_cast<int32_t>(b.first(t) - start);
      w.high[r] = static_cast<int32_t>(t + 1 - start);
    }
  // Rows past the end are zeros, and add zeros wherever they look.
  for (; r < tiles * kTile; ++r) {
    w.shift[r] = 0.0f;
    w.low[r] = w.low[r - 1];
    w.high[r] = w.high[r - 1];
  }
  for (int64_t t = 0; t < tiles; t += 2) {
    const __m512i low0 = _mm512_load_si512(w.low + t * kTile);
    const __m512i low1 = _mm512_load_si512(w.low + (t + 1) * kTile);
    const __m512i high0 = _mm512_load_si512(w.high + t * kTile);
    const __m512i high1 = _mm512_load_si512(w.high + (t + 1) * kTile);
    w.bounds[t / 2] = {_mm512_reduce_min_epi32(_mm512_min_epi32(low0, low1)),
                       _mm512_reduce_max_epi32(_mm512_max_epi32(low0, low1)),
                       _mm512_reduce_min_epi32(_mm512_min_epi32(high0, high1)),
                       _mm512_reduce_max_epi32(_mm512_max_epi32(high0, high1))};
  }
}

// Keys [j0, j0 + keys) of the operand.
void pack_keys(const Backward& b, const Work& w, int64_t kv, int64_t j0, int64_t keys,
               const Wants& wants) {
  const Heads& h = b.heads;
  for (int64_t j = 0; j < keys; j += kStep) {
    const uint16_t *k[kStep], *v[kStep];
    for (int64_t i = 0; i < kStep; ++i) {
      const bool there = j + i < keys;
      k[i] = there ? b.k.at(j0 + j + i, kv * h.e) : nullptr;
      v[i] = there ? b.v.at(j0 + j + i, kv * h.e) : nullptr;
    }
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t at = (j / kTile + i) * h.steps * kTileSize;
      pack_left(k + i * kTile, h, w.k + at);
      pack_left(v + i * kTile, h, w.v + at);
    }
    if (wants.dq) pack_left_rows(k, h, w.k_rows + j / kStep * h.e_tiles * kTileSize);
  }
}

// A step of 32 keys of the block against a step of 32 rows of the chunk.
struct Cell {
  int64_t key, row;  // steps; `row` counts from the chunk's start
};

template <typename Multiplier>
void make_cell(const Work& w, const Heads& h, const Cell& c, std::byte* stage) {
  const int64_t across = h.steps * kTileSize;
  const Tiles k{w.k + 2 * c.key * across, across, kTileSize};
  const Tiles v{w.v + 2 * c.key * across, across, kTileSize};
  const Tiles q{w.q + 2 * c.row * across, across, kTileSize};
  const Tiles dy{w.dy + 2 * c.row * across, across, kTileSize};
  Multiplier::template multiply<2, false>(k, q, h.steps, stage, 2 * kTileSize, kTileSize);
  Multiplier::template multiply<2, false>(v, dy, h.steps, stage + 4 * kTileSize, 2 * kTileSize,
                                          kTileSize);
  memory_fence();
}

// p and ds of the 16 keys `tile` of a cell. `j0` is the first key of the block, `first_row` its
// first step of rows.
template <bool Masked>
void finish_cell(const Work& w, const Heads& h, const Cell& c, int64_t tile, int64_t j0,
                 int64_t first_row, const std::byte* stage, const Block& to) {
  const float* s = reinterpret_cast<const float*>(stage);
  const float* g = s + 4 * kTileSize / 4;
  const int64_t r = c.row * kStep, key = j0 + c.key * kStep, row = c.row - first_row;
  const Vec factor = _mm512_set1_ps(h.scale * kLog2E);
  const Vec shift[2] = {_mm512_load_ps(w.shift + r), _mm512_load_ps(w.shift + r + kTile)};
  const Vec delta[2] = {_mm512_load_ps(w.delta + r), _mm512_load_ps(w.delta + r + kTile)};
  const __m512i low[2] = {_mm512_load_si512(w.low + r), _mm512_load_si512(w.low + r + kTile)};
  const __m512i high[2] = {_mm512_load_si512(w.high + r), _mm512_load_si512(w.high + r + kTile)};
  const int64_t left = ((2 * c.key + tile) * kSteps + row) * kTileSize;
  std::byte* keys = to.ds_keys + (c.key * kRowTiles + 2 * row) * kTileSize + tile * 8 * 64;
  for (int64_t i = 0; i < kTile; i += 2) {
    __m512i rounded[2];
    WICK_UNROLL
    for (int u = 0; u < 2; ++u) {
      Vec p[2], d[2];
      WICK_UNROLL
      for (int n = 0; n < 2; ++n) {
        const int64_t at = ((2 * tile + n) * kTile + i + u) * kTile;
        const Vec x = _mm512_fmsub_ps(_mm512_load_ps(s + at), factor, shift[n]);
        p[n] = _mm512_maskz_mov_ps(inside<Masked>(low[n], high[n], key + tile * kTile + i + u),
                                   exp2_v(x));
        d[n] = _mm512_mul_ps(p[n], _mm512_sub_ps(_mm512_load_ps(g + at), delta[n]));
      }
      rounded[u] = round_pair(d[0], d[1]);
      _mm512_store_si512(to.p + left + (i + u) * 64, round_pair(p[0], p[1]));
      _mm512_store_si512(to.ds + left + (i + u) * 64, rounded[u]);
    }
    _mm512_store_si512(keys + i / 2 * 64, interleave(rounded[0], rounded[1], false));
    _mm512_store_si512(keys + i / 2 * 64 + kTileSize, interleave(rounded[0], rounded[1], true));
  }
}

// One product of 32 x 32 results.
struct Unit {
  Tiles a, b;
  int64_t steps;
  std::byte* c;
  int64_t down, right;
};

// The products of a finished block, done a few at a time: units of 32 x 32 results.
struct Products {
  Block block = {};
  int64_t tile = 0, tiles = 0;  // of rows
  int64_t from = 0, stop = 0;   // steps of keys
  int64_t key_tile = 0;         // of dk and dv
  int64_t done = 0, units = 0;

  // Units go by steps of keys, dv then dk; those of dq come last.
  Unit unit(const Work& w, const Heads& h, int64_t index) const {
    const int64_t t = index % h.steps * 2 * kTileSize, n = index / h.steps;
    const int64_t row = h.e_tiles * kTileSize, keys = stop - from, i = 2 * (n - 2 * keys);
    if (i >= 0)
      return {
          {w.k_rows + from * row + t, kTileSize, row},
          {block.ds_keys + (from * kRowTiles + i) * kTileSize, kTileSize, kRowTiles * kTileSize},
          keys,
          w.dq + (tile + i) * row + t,
          kTileSize,
          row};
    const int64_t step = from + n / 2, left = 2 * step * kSteps * kTileSize;
    const int64_t right = tile / 2 * row + t, to = (key_tile + 2 * step) * row + t;
    const bool values = n % 2 == 0;
    return {{(values ? block.p : block.ds) + left, kSteps * kTileSize, kTileSize},
            {(values ? w.dy_rows : w.q_rows) + right, kTileSize, row},
            tiles / 2,
            (values ? w.dv : w.dk) + to,
            row,
            kTileSize};
  }
  bool wanted(const Heads& h, const Wants& wants, int64_t index) const {
    const int64_t n = index / h.steps;
    if (n >= 2 * (stop - from)) return wants.dq;
    return n % 2 == 0 ? wants.dv : wants.dk;
  }

  template <typename Multiplier>
  void run(const Work& w, const Heads& h, const Wants& wants, int64_t until) {
    memory_fence();
    for (; done < until; ++done) {
      if (!wanted(h, wants, done)) continue;
      const Unit u = unit(w, h, done);
      Multiplier::template multiply<2, true>(u.a, u.b, u.steps, u.c, u.down, u.right);
    }
    memory_fence();
  }
};

// Tiles of rows [tile, tile + tiles) of the packed chunk against the packed block of keys, which
// starts at key j0 of the part and at tile `key_tile` of dk and dv. While the vectors of this block
// are at work, the products of the one before run; this block's are left in `products`.
template <typename Multiplier>
void block(const Backward& b, const Work& w, const Wants& wants, int64_t tile, int64_t tiles,
           int64_t j0, int64_t keys, int64_t key_tile, Products& products) {
  const Heads& h = b.heads;
  int64_t low = keys, high = 0;
  for (int64_t t = tile; t < tile + tiles; t += 2) {
    low = least(low, w.bounds[t / 2].low_min - j0);
    high = most(high, w.bounds[t / 2].high_max - j0);
  }
  low = most(0, low);
  high = least(keys, high);
  if (low >= high) return;
  const int64_t from = low / kStep, stop = up(high, kStep) / kStep;
  const int64_t row0 = tile / 2, row_steps = tiles / 2, cells = (stop - from) * row_steps;
  const Block to = products.block.p == w.blocks[0].p ? w.blocks[1] : w.blocks[0];
  make_cell<Multiplier>(w, h, {from, row0}, w.stage[0]);
  for (int64_t i = 0; i < cells; ++i) {
    const int64_t n = i + 1;
    if (n < cells)
      make_cell<Multiplier>(w, h, {from + n / row_steps, row0 + n % row_steps}, w.stage[n % 2]);
    const Cell c{from + i / row_steps, row0 + i % row_steps};
    const Bounds& bounds = w.bounds[c.row];
    const int64_t key = j0 + c.key * kStep;
    const bool whole = bounds.low_max <= key && bounds.high_min >= key + kStep;
    for (int64_t half = 0; half < 2; ++half) {
      (whole ? finish_cell<false> : finish_cell<true>)(w, h, c, half, j0, row0, w.stage[i % 2], to);
      products.run<Multiplier>(w, h, wants, (2 * i + half + 1) * products.units / (2 * cells));
    }
  }
  products = {to, tile, tiles, from, stop, key_tile, 0, h.steps * (2 * (stop - from) + tiles / 2)};
}

// Positions [t0, t1) of the part at `start` against its keys [from, stop), both counted from the
// part's start; dk and dv begin at `from`.
template <typename Multiplier>
void chunk(const Backward& b, const Work& w, int64_t kv, int64_t start, int64_t t0, int64_t t1,
           int64_t from, int64_t stop, const Wants& wants) {
  const Heads& h = b.heads;
  int64_t first = stop;
  for (int64_t t = t0; t < t1; ++t) first = least(first, b.first(t) - start);
  first = most(first, 0);
  stop = least(stop, t1 - start);
  if (first >= stop && !wants.dq) return;
  pack_rows(b, w, kv, start, t0, t1, wants);
  const int64_t rows = (t1 - t0) * h.group, tiles = up(rows, kStep) / kTile;
  if (wants.dq) clear_tiles(w.dq, tiles * h.e_tiles);
  for (int64_t j0 = from; j0 < stop; j0 += kKeys) {
    const int64_t keys = least(kKeys, stop - j0);
    if (j0 + keys <= first) continue;
    pack_keys(b, w, kv, start + j0, keys, wants);
    Products products;
    for (int64_t t = 0; t < tiles; t += kRowTiles)
      block<Multiplier>(b, w, wants, t, least(kRowTiles, tiles - t), j0, keys, (j0 - from) / kTile,
                        products);
    products.run<Multiplier>(w, h, wants, products.units);
  }
  if (!wants.dq) return;
  RowWalk walk{b.dq.at(t0, kv * h.group * h.e), b.dq.ld, h.e, h.group, rows};
  for (int64_t tile = 0; tile * kTile < rows; ++tile) {
    uint16_t* to[kTile];
    for (uint16_t*& row : to) row = walk.next<true>();
    for (int64_t i = 0; i * kTile < h.e; ++i)
      unpack_tile(w.dq + (tile * h.e_tiles + i) * kTileSize, _mm512_set1_ps(h.scale), to, i * kTile,
                  least(kTile, h.e - i * kTile));
  }
}

// Tiles [16 keys][16 of e] as rows [j0, j0 + keys) of an output.
void put_keys(const Heads& h, const std::byte* from, float factor, const Halves& to, int64_t j0,
              int64_t keys, int64_t kv) {
  for (int64_t j = 0; j < keys; ++j)
    for (int64_t i = 0; i * kTile < h.e; ++i) {
      const std::byte* at = from + (j / kTile * h.e_tiles + i) * kTileSize + j % kTile * 64;
      const Vec v = _mm512_mul_ps(_mm512_load_ps(at), _mm512_set1_ps(factor));
      _mm256_mask_storeu_epi16(to.at(j0 + j, kv * h.e + i * kTile),
                               static_cast<__mmask16>(first_of(least(kTile, h.e - i * kTile))),
                               reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
    }
}

// dk and dv, and dq if it is wanted, of the part's keys [from, stop).
template <typename Multiplier>
void make_keys(const Backward& b, const Work& w, int64_t kv, int64_t start, int64_t end,
               int64_t from, int64_t stop, const Wants& wants) {
  const Heads& h = b.heads;
  const int64_t tiles = up(stop - from, kStep) / kTile * h.e_tiles;
  if (wants.dk) clear_tiles(w.dk, tiles);
  if (wants.dv) clear_tiles(w.dv, tiles);
  const int64_t positions = chunk_positions(h);
  // The rows before `from` see none of these keys.
  for (int64_t t0 = start + from / positions * positions; t0 < end; t0 += positions)
    chunk<Multiplier>(b, w, kv, start, t0, least(end, t0 + positions), from, stop, wants);
  if (wants.dk) put_keys(h, w.dk, h.scale, b.dk, start + from, stop - from, kv);
  if (wants.dv) put_keys(h, w.dv, 1.0f, b.dv, start + from, stop - from, kv);
}

// Rows [t0, t1) that see themselves alone, or nothing: p is 1 and ds 0.
void lone_rows(const Backward& b, int64_t kv, int64_t t0, int64_t t1) {
  const Heads& h = b.heads;
  const __m512i zero = _mm512_setzero_si512();
  for (int64_t t = t0; t < t1; ++t)
    for (int64_t s = 0; s < h.steps; ++s) {
      const __mmask32 mask = first_of(h.e - s * kStep);
      Vec low = _mm512_setzero_ps(), high = low;
      for (int64_t g = kv * h.group; g < (kv + 1) * h.group; ++g) {
        if (b.dq.data != nullptr)
          _mm512_mask_storeu_epi16(b.dq.at(t, g * h.e + s * kStep), mask, zero);
        if (b.begin[t] > t) continue;
        const __m512i dy = load_step(b.dy.at(t, g * h.e), s, h.e);
        low = _mm512_add_ps(low, _mm512_castsi512_ps(_mm512_slli_epi32(
                                     _mm512_cvtepu16_epi32(_mm512_castsi512_si256(dy)), 16)));
        high =
            _mm512_add_ps(high, _mm512_castsi512_ps(_mm512_slli_epi32(
                                    _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(dy, 1)), 16)));
      }
      if (b.dk.data != nullptr)
        _mm512_mask_storeu_epi16(b.dk.at(t, kv * h.e + s * kStep), mask, zero);
      if (b.dv.data != nullptr)
        _mm512_mask_storeu_epi16(b.dv.at(t, kv * h.e + s * kStep), mask, round_pair(low, high));
    }
}

}  // namespace
}  // namespace wick::cpu::tile_attention
WICK_BF16_END
#endif
