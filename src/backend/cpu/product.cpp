// SPDX-License-Identifier: Apache-2.0
// Blocking: a panel of 32 outputs of w, cut along the sum so that most of it stays in the first
// cache, meets 256 rows of x, which stay in the second; a thread keeps to its rows, takes panels a
// few at a time, and brings the next one near while it works on this one. Bound by the tiles:
// docs/decisions/007 has what they reach, and what a processor at its limit of current lets them.
#include "backend/cpu/product.h"

#include <algorithm>

#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/quant_product.h"
#include "backend/cpu/short_tiles.h"
#include "backend/cpu/stretches.h"
#include "base/half.h"
#include "base/threads.h"

#if WICK_CPU_BF16
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/addends-inl.h"

namespace wick::cpu {
namespace {

constexpr int64_t kGroupBlocks = 8;      // blocks of rows that one thread's tasks share
constexpr int64_t kAllBlocks = 16;       // the same where w is far
constexpr int64_t kMostSteps = 32;       // of the sum in one piece of a w that is made
constexpr int64_t kTaskSteps = 3584;     // of 32 x 32 x 32 in one task: some 100 microseconds
constexpr int64_t kKeptBlocks = 256;     // of sums that one task keeps
constexpr int64_t kCBytes = 4096;        // one block of sums
constexpr int64_t kFewBytes = 64 << 10;  // of w in one task of few rows
constexpr int64_t kFewAhead = 8 << 10;

int64_t count_of(int64_t n, int64_t most) { return std::max<int64_t>(1, (n + most - 1) / most); }
int64_t part_size(int64_t n, int64_t parts) { return (n + parts - 1) / parts; }

// One thread's share: panels [p0, p1) and blocks of rows [b0, b1), all of the sum.
struct Share {
  int64_t p0, p1, b0, b1;
  float* sums;  // two blocks, or [panels][blocks] where they are kept
};

// Where step s of a panel lies. A panel's steps follow each other; to be turned they lie a row of
// blocks apart.
const char* block_at(const Product& p, int64_t panel, int64_t s) {
  if (p.rows != nullptr) return nullptr;
  if (p.codes != nullptr) return p.turned ? p.codes->block(s, panel) : p.codes->block(panel, s);
  return p.w + (p.turned ? s * p.panels + panel : panel * p.x.steps + s) *
                   (p.is_short ? kShortBlockBytes : kBlockBytes);
}

// Blocks of sums that one task needs at most.
int64_t sums_of_task(int64_t blocks, int64_t panels) {
  return std::clamp<int64_t>(blocks * panels, 2, kKeptBlocks);
}
// Whether a thread's tasks share all rows of x: where w is far and a piece of x leaves room for it
// in the second cache.
bool takes_all_rows(const Product& p) {
  constexpr int64_t kRoom = 1 << 20;
  const Streamed& x = p.x;
  return p.panels * x.steps * kBlockBytes >= p.unit->far_w &&
         x.blocks * x.outer * x.parts * kBlockBytes <= kRoom;
}
bool keeps_sums(const Product& p) { return p.sums != nullptr || p.x.outer < p.x.steps; }

}  // namespace
}  // namespace wick::cpu

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

// What a thread does between the steps of a block: finishes the block before and brings near what
// this one will touch, a few rows at a time, and makes the next panel of w where it is turned or
// codes.
struct Meanwhile {
  static constexpr int64_t kRows = 4, kFinishing = 32 / kRows;  // rows of a piece; pieces

  const Product& p;
  float* c = nullptr;  // the block to finish; null: none
  int64_t row = 0, col = 0, finished = 0;
  int64_t first_making = 0, pause = 1;    // w is made from that piece on, a block every so many
  int64_t panel = 0, at = 0, wanted = 0;  // blocks of w to make: of a panel, from a step on
  char* made = nullptr;
  const char* next = nullptr;  // the sums that the next block starts from; null: it starts at zero
  Near near = {};              // where this block will be stored
  uint16_t* gates = nullptr;   // of the block to finish
  const PanelAddends* addends = nullptr;  // the same

  void finish_piece() {
    addends->add(c, row, finished * kRows, (finished + 1) * kRows);
    finish_rows(c, p.finish, row, col, finished * kRows, (finished + 1) * kRows, gates);
    if (++finished == kFinishing) c = nullptr;
  }
  void finish() {
    while (c != nullptr) finish_piece();
  }
  void finish_next(float* block, int64_t block_row, int64_t block_col, uint16_t* of_gates,
                   const PanelAddends& of_addends) {
    finish();
    addends = &of_addends;
    c = block;
    row = block_row;
    col = block_col;
    gates = of_gates;
    finished = 0;
  }

  void make() {
    alignas(64) char plain[kBlockBytes];
    if (p.rows != nullptr)
      make_from_rows();
    else if (p.codes != nullptr)
      unpack_quant_block(*p.codes, p.turned ? at : panel, p.turned ? panel : at,
                         p.turned ? plain : made);
    else if (p.is_short)
      unpack_short_block(block_at(p, panel, at), p.turned ? plain : made);
    else
      turn_block(block_at(p, panel, at), made);
    if (p.turned && (p.codes != nullptr || p.is_short)) turn_block(plain, made);
    ++at;
    made += kBlockBytes;
    --wanted;
  }
  // Brings near what the panel after this one is made from.
  void make_from_rows() {
    const Operand& w = *p.rows;
    const int64_t row = (p.turned ? at : panel) * 32, col = (p.turned ? panel : at) * 32;
    const uint16_t* ahead =
        w.as<const uint16_t>() + (p.turned ? row * w.ld + col + 32 : (row + 32) * w.ld + col);
    for (int64_t i = 0; i < 32; ++i) _mm_prefetch(ahead + i * w.ld, _MM_HINT_T0);
    p.turned ? pack_down_block(w, row, col, made) : pack_across_block(w, row, col, made);
  }
  void make_all() {
    while (wanted > 0) make();
  }

  static void piece(void* context, int64_t i) {
    auto* m = static_cast<Meanwhile*>(context);
    if (i >= m->first_making) {
      if (m->wanted > 0 && (i - m->first_making) % m->pause == 0) m->make();
      return;
    }
    constexpr int64_t kLines = kCBytes / 64 / kFinishing;
    if (m->next != nullptr)
      for (int64_t line = 0; line < kLines; ++line)
        _mm_prefetch(m->next + (i * kLines + line) * 64, _MM_HINT_T0);
    m->near.step(kRows);
    if (m->c != nullptr) m->finish_piece();
  }
};

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {
namespace {

void work(const Product& p, const Share& share) {
  const Streamed& x = p.x;
  const int64_t blocks = share.b1 - share.b0;
  const bool keep = keeps_sums(p);
  const bool makes = p.turned || p.is_short || p.codes != nullptr || p.rows != nullptr;
  alignas(64) char made[2][kMostSteps * kBlockBytes];
  alignas(64) uint16_t gates[kAllBlocks][32 * 32];
  PanelAddends addends[2];  // of this panel and the one before, which may still be finished
  Meanwhile meanwhile{p};
  int64_t which = 0;  // of two blocks of sums: one is finished while the other is made
  Block b;
  if (x.row_bytes != 0) {
    b.a_stride = x.row_bytes;
    b.a_step = 64;
  }
  b.parts = static_cast<int>(x.parts);
  b.a_step *= x.parts;
  b.ahead_step = block_at(p, 0, 1) - block_at(p, 0, 0);
  b.meanwhile = Meanwhile::piece;
  b.context = &meanwhile;
  p.unit->begin(16);
  for (int64_t s = 0; s < x.steps; s += x.outer) {
    b.steps = std::min(x.outer, x.steps - s);
    b.first = s == 0 && !p.continues;
    const bool finishes = s + b.steps == x.steps && p.finish.y;
    meanwhile.first_making = finishes || (keep && !b.first) ? Meanwhile::kFinishing : 0;
    const int64_t to_make = makes ? part_size(b.steps, blocks) : 0;
    if (makes) meanwhile.pause = std::max<int64_t>(1, (b.steps - meanwhile.first_making) / to_make);
    b.pieces = meanwhile.first_making + to_make * meanwhile.pause;
    for (int64_t turn = share.p0; turn < share.p1; ++turn) {
      const int64_t panel = p.finish.panel(turn, p.panels);
      b.b = block_at(p, panel, s);
      // While this panel is multiplied the next is made, and what comes then is brought near, a
      // piece with each block of rows.
      const int64_t reach = makes ? 2 : 1;
      const char* next =
          turn + reach < p.panels ? block_at(p, p.finish.panel(turn + reach, p.panels), s) : b.b;
      const int64_t block_lines = p.rows != nullptr    ? 0
                                  : p.codes != nullptr ? p.codes->block_bytes / 64
                                  : p.is_short         ? kShortBlockBytes / 64
                                                       : kBlockBytes / 64;
      const int64_t lines = (block_lines + blocks - 1) / blocks;
      if (makes) {
        auto make_panel = [&](int64_t i) {
          meanwhile.panel = p.finish.panel(i, p.panels);
          meanwhile.at = s;
          meanwhile.made = made[i % 2];
          meanwhile.wanted = i < share.p1 ? b.steps : 0;
        };
        if (turn == share.p0) make_panel(turn);
        meanwhile.make_all();
        make_panel(turn + 1);
        b.b = made[turn % 2];
      }
      PanelAddends& added = addends[turn % 2];
      if (finishes) added.take(p.finish, panel * 32, share.b0 * 32, share.b1 * 32);
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t block = share.b0 + i;
        const int64_t kept =
            p.sums != nullptr ? panel * x.blocks + block : (turn - share.p0) * blocks + i;
        b.c = share.sums + (keep ? kept : which++ % 2) * (kCBytes / 4);
        b.a = x.at(block, s);
        b.a_tiles = x.rows - block * 32 <= 16 ? 1 : 2;
        b.ahead = next + i * lines * 64;
        b.ahead_lines = std::clamp<int64_t>(block_lines - i * lines, 0, lines);
        meanwhile.next = keep && !b.first && i + 1 < blocks
                             ? reinterpret_cast<const char*>(b.c) + kCBytes
                             : nullptr;
        if (finishes && !p.finish.past_caches)
          meanwhile.near.block(p.finish, block * 32, panel * 32);
        // A short block stores its sums at once, and after the ones before.
        if (b.a_tiles == 1 && b.before != nullptr) {
          p.unit->store(b.before);
          b.before = nullptr;
        }
        p.unit->block(b);
        b.before = b.a_tiles == 1 ? nullptr : b.c;
        if (finishes) meanwhile.finish_next(b.c, block * 32, panel * 32, gates[i], added);
      }
    }
  }
  if (b.before != nullptr) p.unit->store(b.before);
  meanwhile.finish();
  if (p.finish.past_caches) fence_stores();
  p.unit->end();
}

}  // namespace

Streamed::Streamed(const Unit& unit, int64_t rows, int64_t sum, void* to, int64_t parts, bool plain)
    : rows(rows),
      blocks(tile_blocks(rows)),
      steps(std::max<int64_t>(1, tile_blocks(sum))),
      parts(parts),
      data(static_cast<char*>(to)) {
  const Unit::Cut& cut = parts > 1 ? unit.parts : plain ? unit.plain : unit.made;
  outer = part_size(steps, count_of(steps, steps <= cut.whole ? cut.whole : cut.cut));
}

size_t product_scratch(int64_t rows, int64_t cols, int threads) {
  return static_cast<size_t>(
      sums_of_task(tile_blocks(std::min(rows, kMostRows)), tile_blocks(cols)) * threads * kCBytes);
}

int64_t group_blocks(int64_t blocks) {
  return std::max<int64_t>(1, part_size(blocks, count_of(blocks, kGroupBlocks)));
}

void multiply(ThreadPool& pool, const Product& p) {
  const Streamed& x = p.x;
  if (x.blocks == 0 || p.panels == 0) return;
  const bool keep = keeps_sums(p);
  // Where panels are few, more groups, so that every thread has work.
  const int64_t all = std::max(count_of(x.blocks, takes_all_rows(p) ? kAllBlocks : kGroupBlocks),
                               std::min(x.blocks, part_size(pool.threads(), p.panels)));
  const int64_t height = part_size(x.blocks, all), groups = part_size(x.blocks, height);
  // The first panel of a task is turned while nothing is multiplied: longer tasks then.
  const int64_t longer = p.turned ? 2 : 1;
  const int64_t most =
      keep ? kKeptBlocks / height : longer * kTaskSteps / (height * x.steps * x.parts);
  const int64_t wanted = part_size((keep ? 1 : 4 / longer) * pool.threads(), groups);
  const int64_t together = p.finish.together(), sets = p.panels / together;
  const int64_t parts =
      std::min(sets, std::max(wanted, count_of(sets, std::max<int64_t>(1, most / together))));
  in_groups(pool, groups, parts, [&](int64_t group, int64_t part, int worker) {
    Share share;
    share.p0 = sets * part / parts * together;
    share.p1 = sets * (part + 1) / parts * together;
    share.b0 = group * height;
    share.b1 = std::min(x.blocks, share.b0 + height);
    share.sums = p.sums != nullptr ? p.sums : static_cast<float*>(p.scratch);
    if (p.sums == nullptr) share.sums += worker * sums_of_task(x.blocks, p.panels) * (kCBytes / 4);
    work(p, share);
  });
}

void pack_left(ThreadPool& pool, const Operand& x, int64_t row, int64_t rows, const Streamed& to) {
  const int64_t height = group_blocks(to.blocks), groups = part_size(to.blocks, height);
  in_groups(pool, groups, height, [&](int64_t group, int64_t i, int) {
    const int64_t b = group * height + i;
    if (b < to.blocks)
      pack_left_block(x, row + b * 32, std::min<int64_t>(32, rows - b * 32), to.steps, to, b);
  });
}

bool lies_ready(const Operand& x, int64_t rows) {
  return rows % 32 == 0 && x.cols % 32 == 0 && x.ld % 32 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 64 == 0;
}

Streamed in_place(const Unit& unit, const Operand& x, int64_t row, int64_t rows, bool plain) {
  Streamed s(unit, rows, x.cols, x.as<char>() + row * x.ld * 2, 1, plain);
  s.row_bytes = x.ld * 2;
  return s;
}

void pack_left_columns(ThreadPool& pool, const Operand& x, int64_t col, int64_t cols,
                       const Streamed& to) {
  pool.parallel(to.blocks,
                [&](int64_t b) { pack_left_column_block(x, col + b * 32, cols - b * 32, to, b); });
}

void pack_right_columns(ThreadPool& pool, const Operand& x, char* to) {
  const int64_t steps = tile_blocks(x.rows);
  pool.parallel(tile_blocks(x.cols), [&](int64_t b) {
    pack_right_column_block(x, b * 32, steps, to + b * steps * kBlockBytes);
  });
}

size_t few_rows_scratch(int64_t rows, int64_t sum) {
  return static_cast<size_t>(tile_blocks(sum) * rows * 64);
}

void multiply_few(ThreadPool& pool, const Unit& unit, const Operand& x, const char* w,
                  const Finish& finish, void* scratch) {
  const int64_t steps = tile_blocks(x.cols), panels = tile_blocks(finish.y.cols);
  char* left = static_cast<char*>(scratch);
  pack_few(x, steps, left);
  const int64_t panel_bytes = steps * kBlockBytes;
  const bool pairs = unit.in_order && x.rows == 1;
  const int64_t grain = std::max<int64_t>(pairs ? 2 : 1, kFewBytes / panel_bytes);
  in_stretches(pool, (panels + grain - 1) / grain, [&](auto next) {
    alignas(64) float c[4 * 256];
    PanelAddends addends;
    Block b;
    b.a = left;
    b.a_step = x.rows * 64;
    b.a_tiles = 1;
    b.a_rows = static_cast<int>(x.rows);
    b.steps = steps;
    b.c = c;
    b.ahead_step = kBlockBytes;
    b.ahead_lines = kBlockBytes / 64;
    unit.begin(b.a_rows);
    for (int64_t i; (i = next()) >= 0;)
      for (int64_t p = i * grain, end = std::min(panels, p + grain); p < end; ++p) {
        b.b = w + p * panel_bytes;
        b.beside = pairs && p + 1 < end ? b.b + panel_bytes : nullptr;
        b.ahead = b.b + kFewAhead;
        unit.block(b);
        finish_few(c, addends, finish, p);
        if (b.beside != nullptr) finish_few(c + 512, addends, finish, ++p);
      }
    unit.end();
  });
}

}  // namespace wick::cpu
#endif
