// SPDX-License-Identifier: Apache-2.0
// Products of many rows with codes of 4 bits in bytes, on AMX's tiles or by AVX-512's dot products,
// for plans that only generate: twice the terms of bf16 for each instruction, and half the bytes
// (docs/decisions/013).
//
// A stretch of 448 along the sum has one scale for each row of x and one for each row of w: x is
// rounded to 8 bits, the codes of w are brought from their groups' scales to the largest of them,
// which leaves a code of the largest group 16 steps and so costs next to nothing. Sums of a stretch
// are exact; they leave the tiles, are scaled and added in f32 while the next stretch is
// multiplied. Bound by the products; both units give the same bits.
#include "backend/cpu/bf16-inl.h"

#if WICK_CPU_BF16
#include "backend/cpu/stretches.h"
#include "base/half.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/quant_bytes-inl.h"

namespace wick::cpu {
namespace {

constexpr int64_t kMostBlocks = 16;      // of 32 rows that meet a stretch of codes
constexpr int64_t kNearBytes = 5 << 18;  // of x that stay in the second cache
constexpr int64_t kLeastRows = 17;       // fewer leave half of a block empty
constexpr int64_t kTaskSteps = 3584;     // of 32 x 32 x 64 in one task

}  // namespace
}  // namespace wick::cpu

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

// GCC's tile operations do not say which memory they touch.
inline void memory_fence() { asm volatile("" ::: "memory"); }

#define WICK_BYTES_START(i)                  \
  _tile_stored(i, drain.sums + 256 * i, 64); \
  _tile_zero(i);
#define WICK_BYTES_GO_ON(i)

// One step, in the order of amx.cpp: a tile is loaded as soon as its last product is on its way.
#define WICK_BYTES_STEP(start, more) \
  _tile_loadd(5, a + 1024, 64);      \
  start(0) _tile_dpbssd(0, 4, 6);    \
  _tile_loadd(7, b + 1024, 64);      \
  start(2) _tile_dpbssd(2, 5, 6);    \
  a += kBlockBytes;                  \
  b += kBlockBytes;                  \
  if (more) _tile_loadd(6, b, 64);   \
  start(1) _tile_dpbssd(1, 4, 7);    \
  if (more) _tile_loadd(4, a, 64);   \
  start(3) _tile_dpbssd(3, 5, 7);

// One stretch of a block. Its sums stay in the tiles; those of the stretch before leave them, to be
// drained while the next codes are made.
void multiply_stretch(const char* a, const char* b, int64_t steps, Drain& drain, Near& near,
                      Made& next, int64_t done, int64_t all) {
  const int64_t last = steps - 1, rows = round_up_div(32, std::max<int64_t>(1, last));
  memory_fence();
  _tile_loadd(4, a, 64);
  _tile_loadd(6, b, 64);
  WICK_BYTES_STEP(WICK_BYTES_START, last > 0)
  memory_fence();
  near.step(4);
  next.make(done + 1, all);
  for (int64_t s = 1; s < last; ++s) {
    WICK_BYTES_STEP(WICK_BYTES_GO_ON, true)
    near.step(4);
    drain.rows(rows);
    next.make(done + s + 1, all);
  }
  if (last > 0) {
    WICK_BYTES_STEP(WICK_BYTES_GO_ON, false)
    next.make(done + steps, all);
  }
  drain.rows(32);
  memory_fence();
}

void store_sums(Drain& drain) {
  _tile_stored(0, drain.sums, 64);
  _tile_stored(1, drain.sums + 256, 64);
  _tile_stored(2, drain.sums + 512, 64);
  _tile_stored(3, drain.sums + 768, 64);
  memory_fence();
}

// One stretch of a block by dot products: x is 128 larger, which the starts take back.
void dot_stretch(const char* a, const Made& w, Drain& drain, Near& near) {
  constexpr int64_t kRows = 8;  // whose sums stay in registers
  const __m512i start0 = _mm512_load_si512(w.starts[0]), start1 = _mm512_load_si512(w.starts[1]);
  for (int64_t row = 0; row < 32; row += kRows, a += kRows * 64) {
    __m512i sum[kRows][2];
    WICK_UNROLL
    for (int i = 0; i < kRows; ++i) {
      sum[i][0] = start0;
      sum[i][1] = start1;
    }
    const char *x = a, *b = w.tiles;
    for (int64_t s = 0; s < w.steps; ++s, x += kBlockBytes, b += kBlockBytes)
      for (int64_t quad = 0; quad < 16; ++quad) {
        const __m512i b0 = _mm512_load_si512(b + quad * 64);
        const __m512i b1 = _mm512_load_si512(b + 1024 + quad * 64);
        WICK_UNROLL
        for (int i = 0; i < kRows; ++i) {
          int four;
          std::memcpy(&four, x + i * 64 + quad * 4, sizeof four);
          const __m512i av = _mm512_set1_epi32(four);
          sum[i][0] = _mm512_dpbusd_epi32(sum[i][0], av, b0);
          sum[i][1] = _mm512_dpbusd_epi32(sum[i][1], av, b1);
        }
      }
    int32_t* to = drain.sums + row / 16 * 512 + row % 16 * 16;
    WICK_UNROLL
    for (int i = 0; i < kRows; ++i) {
      _mm512_store_si512(to + i * 16, sum[i][0]);
      _mm512_store_si512(to + i * 16 + 256, sum[i][1]);
    }
    near.step(kRows);
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {
namespace {

// Panels [p0, p1) of w, in the order of the finish, and blocks of rows [b0, b1) of x. Tiles drain
// the sums of a stretch while the next is multiplied, dot products at once.
void work(const QuantTiles& w, const Bytes& x, const Finish& finish, int64_t p0, int64_t p1,
          int64_t b0, int64_t b1) {
  const bool tiles = x.signs;
  alignas(64) float totals[kMostBlocks][kBlockElements];
  alignas(64) uint16_t gates[kMostBlocks][kBlockElements];
  PanelAddends addends[2];  // of this panel and the one before, which may still drain
  Made made[2];
  Drain drain;
  Near near;
  const int64_t panels = tile_blocks(w.rows), all = (p1 - p0) * x.stretches;
  auto begin = [&](int64_t i) {
    const int64_t stretch = i % x.stretches;
    if (i < all)
      made[i % 2].begin(w, finish.panel(p0 + i / x.stretches, panels), stretch * kStretch,
                        x.length(stretch));
    else
      made[i % 2].none();
  };
  begin(0);
  made[0].make(1, 1);
  if (tiles) kAmxUnit.begin(16);
  for (int64_t i = 0; i < all; ++i) {
    const int64_t stretch = i % x.stretches, steps = x.length(stretch), blocks = b1 - b0;
    const bool last = stretch + 1 == x.stretches;
    Made &now = made[i % 2], &next = made[(i + 1) % 2];
    begin(i + 1);
    if (!tiles) now.make_starts();
    PanelAddends& added = addends[i / x.stretches % 2];
    if (last) added.take(finish, now.panel * 32, b0 * 32, b1 * 32);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t row = (b0 + b) * 32;
      if (last) near.block(finish, row, now.panel * 32);
      if (tiles)
        multiply_stretch(x.at(b0 + b, stretch), now.tiles, steps, drain, near, next, b * steps,
                         blocks * steps);
      else
        dot_stretch(x.at(b0 + b, stretch), now, drain, near);
      std::memcpy(drain.w_scales, now.scales, sizeof drain.w_scales);
      drain.total = totals[b];
      drain.x_scales = x.scale(b0 + b, stretch);
      drain.finish = last ? &finish : nullptr;
      drain.gates = gates[b];
      drain.addends = &added;
      drain.row = row;
      drain.col = now.panel * 32;
      drain.first = stretch == 0;
      drain.at = 0;
      if (tiles) continue;
      drain.rows(32);
      next.make(b + 1, blocks);
    }
  }
  if (!tiles) return;
  store_sums(drain);
  drain.rows(32);
  kAmxUnit.end();
}

}  // namespace

bool multiplies_bytes(const QuantTiles& w, int64_t rows) {
  return w.bits == 4 && rows >= kLeastRows;
}

size_t quant_bytes_scratch(const QuantTiles& w, int64_t rows) {
  return Bytes(w, std::min(rows, kMostRows), true, nullptr).bytes();
}

void multiply_quant_bytes(ThreadPool& pool, const Unit& unit, const Operand& x, const QuantTiles& w,
                          const Finish& finish, void* scratch) {
  const int64_t panels = tile_blocks(w.rows);
  for (int64_t row = 0; row < x.rows; row += kMostRows) {
    const int64_t rows = std::min(kMostRows, x.rows - row);
    const Operand part = rows_of(x, row, rows);
    Finish finish_part = finish;
    finish_part.y = rows_of(finish.y, row, rows);
    finish_part.above = row;
    Gate gate;
    if (finish.gate != nullptr) {
      gate.made = rows_of(finish.gate->made, row, rows);
      finish_part.gate = &gate;
    }
    const Bytes bytes(w, rows, &unit == &kAmxUnit, scratch);
    pool.parallel(bytes.blocks, [&](int64_t block) { round_block(part, block, bytes); });
    const int64_t near =
        std::clamp<int64_t>(kNearBytes / (bytes.steps * kBlockBytes), 1, kMostBlocks);
    const int64_t groups = round_up_div(bytes.blocks, near);
    const int64_t height = round_up_div(bytes.blocks, groups);
    const int64_t most = std::max<int64_t>(1, kTaskSteps / (height * bytes.steps));
    const int64_t together = finish.together(), sets = panels / together;
    const int64_t tasks = std::min(
        sets, std::max(round_up_div(4 * pool.threads(), groups), round_up_div(panels, most)));
    in_groups(pool, groups, tasks, [&](int64_t group, int64_t task, int) {
      work(w, bytes, finish_part, sets * task / tasks * together,
           sets * (task + 1) / tasks * together, group * height,
           std::min(bytes.blocks, (group + 1) * height));
    });
  }
}

}  // namespace wick::cpu
#endif
