// SPDX-License-Identifier: Apache-2.0
// What the kernels in tiles share: scratch in pieces, weights as tiles, whole products of operands
// as they lie in a plan. And the kernels of head, for the table in tile_linear.cpp.
#pragma once

#include <optional>

#include "backend/accepts.h"
#include "backend/cpu/quant_product.h"

namespace wick::cpu {

// Cuts scratch into aligned pieces; with no memory it only counts.
class Pieces {
 public:
  explicit Pieces(void* base) : base_(static_cast<char*>(base)) {}
  void* take(size_t bytes) {
    char* piece = base_ != nullptr ? base_ + used_ : nullptr;
    used_ += (bytes + 63) / 64 * 64;
    return piece;
  }
  size_t bytes() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// A matrix that products in tiles take: in tiles, or in rows of any type to be packed at each call.
inline bool is_matrix(const Operand& o) {
  return !o || o.form != WeightForm::kRows || is_weight(o);
}
inline bool is_bf16(const Operand& o) {
  return o.dtype == DType::kBF16 && o.form == WeightForm::kRows;
}

// Rows [row, row + rows).
Operand rows_of(const Operand& o, int64_t row, int64_t rows);

// A weight's tiles: where it lies, or a packed copy in scratch; or its codes, or its rows.
struct TiledWeight {
  const char* tiles = nullptr;
  bool is_short = false;
  std::optional<QuantTiles> codes = {};
  const Operand* rows = nullptr;
};
// Operands of products in parts: an activation in f32, a weight at rest in bf16.
inline bool is_wide(const Operand& o) { return o && o.dtype == DType::kF32; }
inline bool is_bf16_rows(const Operand& o) { return o && is_bf16(o); }
inline void* take_tiles(const Operand& w, Pieces& pieces) {
  return w.form != WeightForm::kRows ? w.data : pieces.take(tiles_bytes(w.rows, w.cols));
}
TiledWeight tiles_of(ThreadPool& pool, const Operand& w, Pieces& pieces);

// y (+)= scale x wᵀ + bias for many rows of bf16 or f32; turned, y (+)= scale x w. Scratch:
// rows_scratch().
void multiply_rows(ThreadPool& pool, const Unit& unit, const Operand& x, const TiledWeight& w,
                   bool turned, const Finish& finish, Pieces& pieces);
size_t rows_scratch(int64_t rows, int64_t cols, int64_t sum, int threads, int64_t parts = 1);

// y (+)= scale x wᵀ + bias for x of up to kThinSum columns, in bf16, and w in tiles.
constexpr int64_t kThinSum = 16;
void multiply_thin(ThreadPool& pool, const Operand& x, const char* w, const Finish& finish);

// y [A, B] (+)= scale aᵀ b for a [sum, A], b [sum, B]. Scratch: columns_scratch().
void multiply_columns(ThreadPool& pool, const Unit& unit, const Operand& a, const Operand& b,
                      const Finish& finish, Pieces& pieces);
size_t columns_scratch(int64_t sum, int64_t rows, int64_t cols, int threads);

// `parts`: whether also f32 beside words in bf16, in parts.
bool accepts_tile_head_fwd(const StepArgs& args, bool parts);
bool accepts_tile_head_bwd(const StepArgs& args, bool parts);
size_t tile_head_fwd_scratch(const StepArgs& args, int threads);
size_t tile_head_bwd_scratch(const StepArgs& args, int threads);
void tile_head_fwd(const Unit& unit, const StepArgs& args);
void tile_head_bwd(const Unit& unit, const StepArgs& args);

}  // namespace wick::cpu
