// SPDX-License-Identifier: Apache-2.0
// Matrix products in bf16 with sums in f32, for the rungs amx and avx512_bf16. Packing, blocking
// and finishing are shared; a Unit is what multiplies two packed panels.
//
// Everything is cut into steps of 32 along the sum and panels of 32 outputs. Sums run over the
// steps in order wherever the loops are cut (a partial sum rests in f32, exactly), so an element's
// bits depend on its row, its column and the length of the sum alone.
//
// Left operands are packed as [16 rows][32 of the sum], two such tiles to a block; right operands
// as [16 pairs of the sum][16 columns][2], two to a block, which is the layout of tiles.h.
//
// A left operand in f32 is packed as three blocks in place of one, whose elements add up to it
// exactly (24 bits in 3 x 8); each meets the same block of the right operand, whose products with
// them are exact too. So a right operand that rests in bf16 gives sums as good as f32's own.
#pragma once

#include <algorithm>

#include "backend/cpu/tiles.h"
#include "backend/kernels.h"

namespace wick::cpu {

struct QuantTiles;

constexpr int64_t kBlockBytes = kBlockElements * 2;

// C[32, 32] (+)= A[32, 32 * steps] B[32 * steps, 32].
struct Block {
  const char *a = nullptr, *b = nullptr;
  int64_t a_stride = 64;  // bytes to A's next row
  int64_t a_step = kBlockBytes, b_step = kBlockBytes;
  int64_t steps = 0;
  int parts = 1;    // blocks of A for each of B: 3 where A is f32
  int a_tiles = 2;  // 1: C's first 16 rows only
  int a_rows = 16;  // of that one tile, as begin() was told
  // A second panel of B for one row of A, whose sums go to `c` + 512; null: none.
  const char* beside = nullptr;
  bool first = true;   // the sum starts at zero, not at C
  float* c = nullptr;  // [2][2][16][16]: tiles by rows, then by columns
  // Where the sums of the block before go, which a unit may have kept until now; null: nothing is
  // kept. This block's are in `c` after the next block or store(); with one tile at once.
  float* before = nullptr;
  // What is read soon: each step brings `ahead_lines` lines near, `ahead_step` bytes on.
  const char* ahead = nullptr;
  int64_t ahead_step = 0, ahead_lines = 0;
  // Other work, in pieces 0, 1, …: where a unit has time for it, one with each step. What is left
  // is for whoever asked.
  void (*meanwhile)(void* context, int64_t piece) = nullptr;
  void* context = nullptr;
  int64_t pieces = 0;
};

struct Unit {
  void (*begin)(int rows);  // on each thread before its blocks; `rows` < 16: one short tile of A
  void (*end)();
  void (*block)(const Block&);
  void (*store)(float* c);  // the sums of the block before, where they are not yet in `c`
  // Of few rows, whose w comes from memory: it is read line after line, with nothing brought near,
  // because the processor's own prefetching follows that best, and Block::beside is taken.
  bool in_order;
  // How sums are cut: up to `whole` steps are one piece, more are pieces of up to `cut`.
  struct Cut {
    int64_t whole, cut;
  };
  Cut plain, made, parts;  // w as it lies; made when it is needed; beside x in parts
  // From so many bytes of w on, a thread takes all rows of x and not half of them, so that w comes
  // from memory for one thread only.
  int64_t far_w;
  // From so many bytes of y on it is stored past the caches.
  int64_t far_y;
};
extern const Unit kAmxUnit;  // where amx_works()
extern const Unit kDotUnit;  // where avx512_bf16_works()

constexpr int64_t kF32Parts = 3;

// An operand whose rows pass by for every panel of the other one: [rows, sum] of bf16 or, with
// kF32Parts, f32. Cut along the sum so that what is used together fits the second cache.
struct Streamed {
  int64_t rows = 0;
  int64_t blocks = 0, steps = 0;  // of 32 rows; of 32 along the sum
  int64_t outer = 0;              // steps that are used together
  int64_t parts = 1;
  char* data = nullptr;
  int64_t row_bytes = 0;  // read where it lies, this far from a row to the next; 0: packed

  Streamed() = default;
  // `plain`: the other operand is read as it lies.
  Streamed(const Unit& unit, int64_t rows, int64_t sum, void* to, int64_t parts = 1,
           bool plain = false);
  static size_t bytes_of(int64_t rows, int64_t sum, int64_t parts = 1) {
    return static_cast<size_t>(tile_blocks(rows) * std::max<int64_t>(1, tile_blocks(sum)) * parts) *
           kBlockBytes;
  }
  // Where step s of block b lies; packed, the steps of one stretch of `outer` follow each other.
  char* at(int64_t b, int64_t s) const {
    if (row_bytes != 0) return data + b * 32 * row_bytes + s * 64;
    const int64_t first = s / outer * outer, length = std::min(outer, steps - first);
    return data + (first * blocks + b * length + s - first) * parts * kBlockBytes;
  }
};

inline int64_t parts_of(DType x) { return x == DType::kF32 ? kF32Parts : 1; }

// Blocks of rows that a thread keeps to, product after product: in_groups() of stretches.h.
int64_t group_blocks(int64_t blocks);

// Row-major `x` [*, sum], bf16 or f32, from row `row` on, packed.
void pack_left(ThreadPool& pool, const Operand& x, int64_t row, int64_t rows, const Streamed& to);
// The same read in place, for whole blocks and aligned rows; tiles then come from scattered lines,
// which a few panels repay by what packing would cost.
bool lies_ready(const Operand& x, int64_t rows);
Streamed in_place(const Unit& unit, const Operand& x, int64_t row, int64_t rows, bool plain);
// Columns [col, col + cols) of row-major bf16 `x` [sum, *] as left operand: the sum runs down x.
void pack_left_columns(ThreadPool& pool, const Operand& x, int64_t col, int64_t cols,
                       const Streamed& to);
// All columns of row-major bf16 `x` [sum, cols] as right operand, [cols/32][sum/32] blocks.
void pack_right_columns(ThreadPool& pool, const Operand& x, char* to);

// A gated_act with silu that is made while its input's sums are at hand: made [M, F] of y [M, 2F],
// which is not stored. In bf16 and whole panels, with the roundings of the two ops.
struct Gate {
  Operand made = {};
  // Which of a product's panels is multiplied as the i-th: a gate's, then its up's.
  static int64_t panel(int64_t i, int64_t panels) { return i % 2 * (panels / 2) + i / 2; }
};

// A product with a short sum that is added to others' sums: scale * x wᵀ to rows [row, row + M) and
// columns [col, col + N) of theirs.
struct Addend {
  Operand x = {};  // [M, K] bf16
  Operand w = {};  // [N, K] in rows
  float scale = 1.0f;
  int64_t row = 0, col = 0;  // col: a panel's first
};
constexpr int64_t kMostAddends = 16;

// What becomes of a finished sum: y (+)= scale * sum + bias, rounded once.
struct Finish {
  Operand y;  // f32 or bf16
  float scale = 1.0f;
  bool add = false;
  const float* bias = nullptr;  // by column, padded to whole panels
  const Gate* gate = nullptr;
  std::span<const Addend> addends = {};  // added to the sums before anything else, with scale 1
  int64_t above = 0;                     // rows of theirs that are before y's
  bool past_caches = false;              // y, whole lines of bf16, is not read soon
  int64_t panel(int64_t i, int64_t panels) const {
    return gate != nullptr ? gate->panel(i, panels) : i;
  }
  int64_t together() const { return gate != nullptr ? 2 : 1; }  // panels that one thread takes
};

// x wᵀ with w in tiles: panel p's step s at (p * steps + s) blocks. Or, turned, x w: panel p's step
// s at (s * panels + p) blocks.
struct Product {
  const Unit* unit = nullptr;
  bool turned = false;
  const char* w = nullptr;
  bool is_short = false;              // w's blocks are those of short_tiles.h
  const QuantTiles* codes = nullptr;  // in place of w
  const Operand* rows = nullptr;      // the same: bf16 in rows
  int64_t panels = 0;                 // of 32 columns of the result
  Streamed x = {};
  Finish finish = {};       // without y the result stays in `sums`
  float* sums = nullptr;    // [panels][blocks of rows] of Block::c; null: in scratch
  bool continues = false;   // the sums start at what `sums` holds
  void* scratch = nullptr;  // product_scratch(); none with `sums`
};
size_t product_scratch(int64_t rows, int64_t cols, int threads);
void multiply(ThreadPool& pool, const Product& p);

// Rows of a streamed operand that are multiplied at a time: more are cut by the caller.
constexpr int64_t kMostRows = 512;

// y = x wᵀ for up to 16 rows: w is read once, from memory.
constexpr int64_t kFewRows = 16;
size_t few_rows_scratch(int64_t rows, int64_t sum);
void multiply_few(ThreadPool& pool, const Unit& unit, const Operand& x, const char* w,
                  const Finish& finish, void* scratch);

}  // namespace wick::cpu
