// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/tile_kernels.h"

#include "backend/cpu/bf16-inl.h"
#include "base/threads.h"

#if WICK_CPU_BF16
namespace wick::cpu {
namespace {

constexpr int64_t kPackPanels = 24;  // a thread's, from which on packing x pays

// Equal stretches of whole blocks, at most kMostRows long.
int64_t stretch_of(int64_t rows) {
  const int64_t parts = std::max<int64_t>(1, (rows + kMostRows - 1) / kMostRows);
  return tile_blocks((rows + parts - 1) / parts) * 32;
}

// Whether y is so large that it leaves the caches before anybody reads it, and is written in whole
// lines.
bool is_far(const Finish& finish, const Unit& unit) {
  const Operand& y = finish.y;
  return is_bf16(y) && !finish.add && finish.gate == nullptr && lies_ready(y, 32) &&
         y.rows * y.cols * 2 >= unit.far_y;
}

// Multiplies one stretch of y's rows after the other; load(row, rows, scratch) gives the left
// operand's.
template <typename Load>
void in_stretches(ThreadPool& pool, Product product, int64_t sum, int64_t parts,
                  const Finish& finish, Pieces& pieces, const Load& load) {
  const int64_t all = finish.y.rows, stretch = stretch_of(all);
  product.panels = tile_blocks(finish.y.cols);
  void* streamed = pieces.take(Streamed::bytes_of(std::min(all, stretch), sum, parts));
  product.scratch = pieces.take(product_scratch(stretch, finish.y.cols, pool.threads()));
  for (int64_t row = 0; row < all; row += stretch) {
    const int64_t rows = std::min(stretch, all - row);
    product.x = load(row, rows, streamed);
    product.finish = finish;
    product.finish.y = rows_of(finish.y, row, rows);
    product.finish.above = row;
    product.finish.past_caches = is_far(finish, *product.unit);
    Gate gate;
    if (finish.gate != nullptr) {
      gate.made = rows_of(finish.gate->made, row, rows);
      product.finish.gate = &gate;
    }
    multiply(pool, product);
  }
}

}  // namespace

Operand rows_of(const Operand& o, int64_t row, int64_t rows) {
  Operand part = o;
  part.rows = rows;
  part.data = o.as<char>() + static_cast<size_t>(row * o.ld) * dtype_bytes(o.dtype);
  return part;
}

TiledWeight tiles_of(ThreadPool& pool, const Operand& w, Pieces& pieces) {
  if (dtype_is_quantized(w.dtype)) return {.codes = QuantTiles(w.data, w.dtype, w.rows, w.cols)};
  void* tiles = take_tiles(w, pieces);
  if (w.form == WeightForm::kRows) pack_tiles(pool, w.dtype, w.data, w.rows, w.cols, tiles, w.ld);
  return {.tiles = static_cast<const char*>(tiles), .is_short = w.form == WeightForm::kShortTiles};
}

void multiply_rows(ThreadPool& pool, const Unit& unit, const Operand& x, const TiledWeight& w,
                   bool turned, const Finish& finish, Pieces& pieces) {
  const bool few_panels = tile_blocks(finish.y.cols) < kPackPanels * pool.threads();
  const QuantTiles* codes = w.codes ? &*w.codes : nullptr;
  const int64_t parts = parts_of(x.dtype);
  const bool plain = !turned && w.tiles != nullptr && !w.is_short;
  in_stretches(pool,
               {.unit = &unit,
                .turned = turned,
                .w = w.tiles,
                .is_short = w.is_short,
                .codes = codes,
                .rows = w.rows},
               x.cols, parts, finish, pieces, [&](int64_t row, int64_t rows, void* scratch) {
                 if (parts == 1 && few_panels && lies_ready(x, rows))
                   return in_place(unit, x, row, rows, plain);
                 const Streamed packed(unit, rows, x.cols, scratch, parts, plain);
                 pack_left(pool, x, row, rows, packed);
                 return packed;
               });
}

size_t rows_scratch(int64_t rows, int64_t cols, int64_t sum, int threads, int64_t parts) {
  const int64_t stretch = stretch_of(rows);
  Pieces pieces(nullptr);
  pieces.take(Streamed::bytes_of(std::min(rows, stretch), sum, parts));
  pieces.take(product_scratch(stretch, cols, threads));
  return pieces.bytes();
}

void multiply_columns(ThreadPool& pool, const Unit& unit, const Operand& a, const Operand& b,
                      const Finish& finish, Pieces& pieces) {
  char* right = static_cast<char*>(pieces.take(tiles_bytes(b.cols, b.rows)));
  pack_right_columns(pool, b, right);
  in_stretches(pool, {.unit = &unit, .w = right}, a.rows, 1, finish, pieces,
               [&](int64_t row, int64_t rows, void* scratch) {
                 const Streamed packed(unit, rows, a.rows, scratch, 1, true);
                 pack_left_columns(pool, a, row, rows, packed);
                 return packed;
               });
}

size_t columns_scratch(int64_t sum, int64_t rows, int64_t cols, int threads) {
  Pieces pieces(nullptr);
  pieces.take(tiles_bytes(cols, sum));
  pieces.take(rows_scratch(rows, cols, sum, threads));
  return pieces.bytes();
}

}  // namespace wick::cpu
#endif
