// SPDX-License-Identifier: Apache-2.0
// linear and embed on the rungs with bf16 units, for activations in bf16. Frozen weights lie in
// tiles; what may change from step to step (adapters, weights in training) is rounded and packed
// into scratch at each call. And, on AMX, the linears of activations in f32 whose weights rest in
// bf16: in three exact parts, see product.h, at 1.5 times the speed of multiply-adds in f32 or
// more.
#include <array>

#include "backend/accepts.h"
#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/joined.h"
#include "backend/cpu/rungs.h"
#include "backend/cpu/short_tiles.h"
#include "backend/cpu/tile_kernels.h"

#if WICK_CPU_BF16
#include "base/half.h"
#include "base/threads.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/product-inl.h"

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

// db[n] (+)= Σ_t dy[t, n] in row order, for 32 columns.
void sum_columns(const Operand& dy, const Operand& db, int64_t col, bool add) {
  const int64_t cols = dy.cols - col;
  const __mmask16 mask0 = lanes_below(cols), mask1 = lanes_below(cols - 16);
  float* to = db.as<float>() + col;
  __m512 sum0 = add ? _mm512_maskz_loadu_ps(mask0, to) : _mm512_setzero_ps();
  __m512 sum1 = add ? _mm512_maskz_loadu_ps(mask1, to + 16) : _mm512_setzero_ps();
  const uint16_t* from = dy.as<uint16_t>() + col;
  for (int64_t t = 0; t < dy.rows; ++t, from += dy.ld) {
    const __m512i v = _mm512_maskz_loadu_epi16(words_below(cols), from);
    sum0 = _mm512_add_ps(sum0, widen_words(_mm512_castsi512_si256(v)));
    sum1 = _mm512_add_ps(sum1, widen_words(_mm512_extracti64x4_epi64(v, 1)));
  }
  _mm512_mask_storeu_ps(to, mask0, sum0);
  _mm512_mask_storeu_ps(to + 16, mask1, sum1);
}

void embed_rows(const Operand& table, const int32_t* ids, const Operand& y, int64_t t0,
                int64_t t1) {
  const int64_t row_bytes = y.ld * static_cast<int64_t>(dtype_bytes(y.dtype));
  if (dtype_is_quantized(table.dtype)) {
    const QuantTiles codes(table.data, table.dtype, table.rows, table.cols);
    for (int64_t t = t0; t < t1; ++t) unpack_quant_row(codes, ids[t], y.as<bf16>() + t * y.ld);
    return;
  }
  const auto copy = table.form == WeightForm::kShortTiles ? copy_short_row : copy_tile_row;
  for (int64_t t = t0; t < t1; ++t)
    copy(table.as<const char>(), ids[t], y.cols, y.dtype, y.as<char>() + t * row_bytes);
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {
namespace {

bool is_result(const Operand& o) { return !o || is_f32(o) || is_bf16(o); }
Operand input(const StepArgs& args, size_t i) {
  return args.in.size() > i ? args.in[i] : Operand{};
}
Operand output(const StepArgs& args, size_t i) {
  return args.out.size() > i ? args.out[i] : Operand{};
}

// The bias in f32, padded to whole panels.
size_t bias_bytes(const Operand& bias) {
  return bias ? static_cast<size_t>(tile_blocks(bias.cols)) * 32 * sizeof(float) : 0;
}
const float* widen_bias(const Operand& bias, Pieces& pieces) {
  if (!bias) return nullptr;
  float* to = static_cast<float*>(pieces.take(bias_bytes(bias)));
  for (int64_t i = 0; i < tile_blocks(bias.cols) * 32; ++i) {
    float v = 0;
    if (i < bias.cols) {
      if (bias.dtype == DType::kF32) v = bias.as<const float>()[i];
      if (bias.dtype == DType::kBF16) v = to_float(bias.as<const bf16>()[i]);
      if (bias.dtype == DType::kF16) v = to_float(bias.as<const f16>()[i]);
    }
    to[i] = v;
  }
  return to;
}

bool accepts_linear_fwd(const StepArgs& args) {
  const Operand bias = input(args, 2);
  return is_bf16(args.in[0]) && is_matrix(args.in[1]) && is_weight(bias) && is_result(args.out[0]);
}

// What the steps that are made with a product add to its y, and the gate that takes it.
struct Joined {
  std::array<Addend, kMostAddends> addends = {};
  size_t count = 0;
  Gate gate = {};

  explicit Joined(const StepArgs& product) {
    const Operand& y = product.out[0];
    for (const StepArgs* a = product.next; a != nullptr; a = a->next) {
      if (a->step->op == Op::kGatedAct) {
        gate.made = a->out[0];
        continue;
      }
      const int64_t at = a->out[0].as<bf16>() - y.as<bf16>();
      addends[count++] = {a->in[0], a->in[1], attr<LinearAttr>(*a->step).scale, at / y.ld,
                          at % y.ld};
    }
  }
};

template <const Unit& U>
void linear_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &y = args.out[0];
  if (x.rows == 0 || y.cols == 0) return;
  Pieces pieces(args.scratch);
  const TiledWeight w = tiles_of(*args.pool, args.in[1], pieces);
  const Joined joined(args);
  const Finish finish{.y = y,
                      .scale = attr<LinearAttr>(*args.step).scale,
                      .add = args.accumulates(0),
                      .bias = widen_bias(input(args, 2), pieces),
                      .gate = joined.gate.made ? &joined.gate : nullptr,
                      .addends = {joined.addends.data(), joined.count}};
  const bool narrow = attr<LinearAttr>(*args.step).narrow == Narrow::kBytes;
  if (!w.codes && x.cols <= kThinSum && finish.gate == nullptr)
    multiply_thin(*args.pool, x, w.tiles, finish);
  else if (w.codes && narrow && multiplies_bytes(*w.codes, x.rows))
    multiply_quant_bytes(*args.pool, U, x, *w.codes, finish,
                         pieces.take(quant_bytes_scratch(*w.codes, x.rows)));
  else if (w.codes && x.rows <= kQuantFewRows)
    multiply_quant_few(*args.pool, U, x, *w.codes, narrow, finish,
                       pieces.take(quant_few_scratch(*w.codes, x.rows)));
  else if (w.is_short && x.rows <= kFewRows)
    multiply_few_short(*args.pool, x, w.tiles, finish,
                       pieces.take(few_rows_scratch(x.rows, x.cols)));
  else if (!w.codes && x.rows <= kFewRows)
    multiply_few(*args.pool, U, x, w.tiles, finish, pieces.take(few_rows_scratch(x.rows, x.cols)));
  else
    multiply_rows(*args.pool, U, x, w, false, finish, pieces);
}
size_t linear_fwd_scratch(const StepArgs& args, int threads) {
  const Operand &x = args.in[0], &w = args.in[1];
  Pieces pieces(nullptr);
  take_tiles(w, pieces);
  pieces.take(bias_bytes(input(args, 2)));
  std::optional<QuantTiles> codes;
  if (dtype_is_quantized(w.dtype)) codes.emplace(nullptr, w.dtype, w.rows, w.cols);
  if (codes && attr<LinearAttr>(*args.step).narrow == Narrow::kBytes &&
      multiplies_bytes(*codes, x.rows))
    pieces.take(quant_bytes_scratch(*codes, x.rows));
  else if (codes && x.rows <= kQuantFewRows)
    pieces.take(quant_few_scratch(*codes, x.rows));
  else if (!codes && x.rows <= kFewRows)
    pieces.take(few_rows_scratch(x.rows, x.cols));
  else
    pieces.take(rows_scratch(x.rows, w.rows, x.cols, threads));
  return pieces.bytes();
}

bool accepts_linear_bwd(const StepArgs& args) {
  const Operand x = input(args, 1), w = input(args, 2);
  return is_bf16(args.in[0]) && (!x || is_bf16(x)) && is_matrix(w) && is_result(args.out[0]) &&
         is_f32(output(args, 1)) && is_f32(output(args, 2));
}

template <const Unit& U>
void linear_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &dx = args.out[0];
  const Operand dw = output(args, 1), db = output(args, 2);
  const float scale = attr<LinearAttr>(*args.step).scale;
  ThreadPool& pool = *args.pool;
  if (dx && dx.rows > 0) {
    Pieces pieces(args.scratch);
    const TiledWeight w = tiles_of(pool, args.in[2], pieces);
    multiply_rows(pool, U, dy, w, true, {dx, scale, args.accumulates(0)}, pieces);
  }
  if (dw) {
    Pieces pieces(args.scratch);
    multiply_columns(pool, U, dy, args.in[1], {dw, scale, args.accumulates(1)}, pieces);
  }
  if (db)
    pool.parallel(tile_blocks(dy.cols),
                  [&](int64_t i) { sum_columns(dy, db, i * 32, args.accumulates(2)); });
}
size_t linear_bwd_scratch(const StepArgs& args, int threads) {
  const Operand &dy = args.in[0], &dx = args.out[0];
  const Operand dw = output(args, 1);
  Pieces for_dx(nullptr), for_dw(nullptr);
  if (dx) {
    take_tiles(args.in[2], for_dx);
    for_dx.take(rows_scratch(dy.rows, dx.cols, dy.cols, threads));
  }
  if (dw) for_dw.take(columns_scratch(dy.rows, dw.rows, dw.cols, threads));
  return std::max(for_dx.bytes(), for_dw.bytes());
}

// The dot products of AVX-512 are no faster than f32's multiply-adds: no parts there.
template <const Unit& U>
bool has_parts() {
  return &U == &kAmxUnit;
}

// Fewer rows are bound by reading w: linear.cpp. Adapters and what trains are f32: also there.
constexpr int64_t kWideRows = 9, kWideSize = 64;
bool is_wide_weight(const Operand& w) {
  return is_bf16_rows(w) && w.rows >= kWideSize && w.cols >= kWideSize;
}

template <const Unit& U>
bool accepts_wide_fwd(const StepArgs& args) {
  const Operand& x = args.in[0];
  return has_parts<U>() && is_wide(x) && x.rows >= kWideRows && is_wide_weight(args.in[1]) &&
         is_weight(input(args, 2)) && is_wide(args.out[0]);
}
template <const Unit& U>
void wide_fwd(const StepArgs& args) {
  Pieces pieces(args.scratch);
  const Finish finish{args.out[0], attr<LinearAttr>(*args.step).scale, args.accumulates(0),
                      widen_bias(input(args, 2), pieces)};
  multiply_rows(*args.pool, U, args.in[0], {.rows = &args.in[1]}, false, finish, pieces);
}
size_t wide_fwd_scratch(const StepArgs& args, int threads) {
  const Operand &x = args.in[0], &w = args.in[1];
  Pieces pieces(nullptr);
  pieces.take(bias_bytes(input(args, 2)));
  pieces.take(rows_scratch(x.rows, w.rows, x.cols, threads, kF32Parts));
  return pieces.bytes();
}

template <const Unit& U>
bool accepts_wide_bwd(const StepArgs& args) {
  const Operand& dy = args.in[0];
  return has_parts<U>() && is_wide(dy) && dy.rows >= kWideRows && is_wide_weight(input(args, 2)) &&
         is_wide(args.out[0]) && !output(args, 1) && !output(args, 2);
}
template <const Unit& U>
void wide_bwd(const StepArgs& args) {
  Pieces pieces(args.scratch);
  multiply_rows(*args.pool, U, args.in[0], {.rows = &args.in[2]}, true,
                {args.out[0], attr<LinearAttr>(*args.step).scale, args.accumulates(0)}, pieces);
}
size_t wide_bwd_scratch(const StepArgs& args, int threads) {
  const Operand& dy = args.in[0];
  return rows_scratch(dy.rows, args.out[0].cols, dy.cols, threads, kF32Parts);
}

bool accepts_embed(const StepArgs& args) {
  return args.in[0].form != WeightForm::kRows && is_result(args.out[0]) &&
         (!dtype_is_quantized(args.in[0].dtype) || is_bf16(args.out[0]));
}
void embed_fwd(const StepArgs& args) {
  const Operand &table = args.in[0], &y = args.out[0];
  constexpr int64_t kGrain = 16;
  args.pool->parallel((y.rows + kGrain - 1) / kGrain, [&](int64_t i) {
    embed_rows(table, args.in[1].as<const int32_t>(), y, i * kGrain,
               std::min(y.rows, (i + 1) * kGrain));
  });
}

template <const Unit& U>
bool accepts_head_fwd(const StepArgs& args) {
  return accepts_tile_head_fwd(args, has_parts<U>());
}
template <const Unit& U>
bool accepts_head_bwd(const StepArgs& args) {
  return accepts_tile_head_bwd(args, has_parts<U>());
}
template <const Unit& U>
void head_fwd(const StepArgs& args) {
  tile_head_fwd(U, args);
}
template <const Unit& U>
void head_bwd(const StepArgs& args) {
  tile_head_bwd(U, args);
}

template <const Unit& U>
Candidates table() {
  static constexpr Candidate kTable[] = {
      {Op::kLinear, Dir::kForward, "linear_fwd_parts", wide_fwd<U>, accepts_wide_fwd<U>,
       wide_fwd_scratch},
      {Op::kLinear, Dir::kBackward, "linear_bwd_parts", wide_bwd<U>, accepts_wide_bwd<U>,
       wide_bwd_scratch},
      {Op::kLinear, Dir::kForward, "linear_fwd_tiles", linear_fwd<U>, accepts_linear_fwd,
       linear_fwd_scratch},
      {Op::kLinear, Dir::kBackward, "linear_bwd_tiles", linear_bwd<U>, accepts_linear_bwd,
       linear_bwd_scratch},
      {Op::kHead, Dir::kForward, "head_fwd_tiles", head_fwd<U>, accepts_head_fwd<U>,
       tile_head_fwd_scratch},
      {Op::kHead, Dir::kBackward, "head_bwd_tiles", head_bwd<U>, accepts_head_bwd<U>,
       tile_head_bwd_scratch},
      {Op::kEmbed, Dir::kForward, "embed_fwd_tiles", embed_fwd, accepts_embed, nullptr},
  };
  return kTable;
}

}  // namespace

bool takes_gate(KernelFn linear) {
  return linear == linear_fwd<kAmxUnit> || linear == linear_fwd<kDotUnit>;
}

bool takes_addends(KernelFn linear, const StepArgs& args) {
  const bool thin = args.in[0].cols <= kThinSum && !dtype_is_quantized(args.in[1].dtype);
  return takes_gate(linear) && !thin && is_bf16(args.out[0]) && args.out[0].rows > 0 &&
         attr<LinearAttr>(*args.step).scale == 1.0f;
}

Candidates tile_candidates(Rung rung) {
  if (rung == Rung::kAmx) return table<kAmxUnit>();
  if (rung == Rung::kAvx512Bf16) return table<kDotUnit>();
  return {};
}

}  // namespace wick::cpu

#else

namespace wick::cpu {
bool takes_gate(KernelFn) { return false; }
bool takes_addends(KernelFn, const StepArgs&) { return false; }
Candidates tile_candidates(Rung) { return {}; }
}  // namespace wick::cpu

#endif
