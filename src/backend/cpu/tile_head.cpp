// SPDX-License-Identifier: Apache-2.0
// head on the rungs with bf16 units. Bound by products: one of rows x V x D for the logits, one for
// the gradient, made in the same pass.
//
// A stretch of up to 512 supervised rows meets the vocabulary in chunks. Logits of a chunk are
// blocks of sums in f32. Each row keeps a reference near its running maximum, the sum of
// e^(logit - reference), and, for dlogp_dx, that sum weighted by the rows of w; the reference
// moves, and what was summed is rescaled, only when a logit passes it by more than kSlack. With
// skip_below, terms below that share of the sum so far are zero, and a chunk without others is not
// multiplied; chunks are small then.
#include <atomic>
#include <cmath>
#include <cstring>

#include "backend/accepts.h"
#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/stretches.h"
#include "backend/cpu/tile_kernels.h"

#if WICK_CPU_BF16
#include "base/half.h"
#include "base/threads.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/tile_head-inl.h"

namespace wick::cpu {
namespace {

Operand input(const StepArgs& args, size_t i) {
  return args.in.size() > i ? args.in[i] : Operand{};
}
Operand output(const StepArgs& args, size_t i) {
  return args.out.size() > i ? args.out[i] : Operand{};
}
char* row_of(const Operand& o, int64_t row) {
  return o.as<char>() + static_cast<size_t>(row * o.ld) * dtype_bytes(o.dtype);
}
bool is_or_absent(const Operand& o, DType dtype) { return !o || o.dtype == dtype; }
// x in bf16; or in f32, beside words that rest in bf16: in three exact parts, see product.h.
bool are_products(const Operand& x, const Operand& w, bool parts) {
  return is_bf16(x) ? is_matrix(w) : parts && is_wide(x) && is_bf16_rows(w);
}

int64_t kept_rows(const Operand& targets, int32_t* rows) {
  int64_t kept = 0;
  for (int64_t m = 0; m < targets.elements(); ++m)
    if (targets.as<const int32_t>()[m] >= 0) rows[kept++] = static_cast<int32_t>(m);
  return kept;
}

// The supervised rows, stretch by stretch, and the chunks of the vocabulary with their logits.
// begin(which, rows) before a stretch, chunk(v0, words, w) with logits made, end() after it.
struct Pass {
  ThreadPool& pool;
  const Unit& unit;
  const Operand &x, &w, &targets;
  const Work& work;
  int64_t chunk_words = kWords;
  const int32_t* which = nullptr;  // the stretch's rows
  int64_t rows = 0, blocks = 0, first = 0;

  template <typename Begin, typename Chunk, typename End>
  void run(const Begin& begin, const Chunk& chunk, const End& end) {
    const int64_t kept = kept_rows(targets, work.kept), d = w.cols;
    const int64_t parts = std::max<int64_t>(1, (kept + kMostRows - 1) / kMostRows);
    const int64_t stretch = (kept + parts - 1) / parts;
    for (first = 0; first < kept; first += stretch) {
      which = work.kept + first;
      rows = std::min(stretch, kept - first);
      blocks = tile_blocks(rows);
      const Operand picked{work.x, rows, d, d, x.dtype};
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(row_of(picked, r), row_of(x, which[r]),
                    static_cast<size_t>(d) * dtype_bytes(x.dtype));
      const bool plain = work.parts == 1 && w.form != WeightForm::kShortTiles;
      const Streamed left(unit, rows, d, work.left, work.parts, plain);
      pack_left(pool, picked, 0, rows, left);
      begin();
      for (int64_t v0 = 0; v0 < w.rows; v0 += chunk_words) {
        const int64_t words = std::min(chunk_words, w.rows - v0);
        Operand part = w;
        part.rows = words;
        const bool is_short = w.form == WeightForm::kShortTiles;
        TiledWeight of_chunk{
            .tiles = w.as<const char>() +
                     v0 / 32 * tile_blocks(d) * (is_short ? kShortBlockBytes : kBlockBytes),
            .is_short = is_short};
        if (work.parts > 1) {
          part.data = row_of(w, v0);
          of_chunk.rows = &part;
        } else if (needs_tiles(w)) {
          make_tiles(v0, words);
          of_chunk.tiles = work.tiles;
        }
        multiply(pool, {.unit = &unit,
                        .w = of_chunk.tiles,
                        .is_short = of_chunk.is_short,
                        .rows = of_chunk.rows,
                        .panels = tile_blocks(words),
                        .x = left,
                        .sums = work.logits});
        chunk(v0, words, of_chunk);
      }
      end();
    }
  }

  void make_tiles(int64_t v0, int64_t words) const {
    if (w.form == WeightForm::kRows)
      return pack_tiles(pool, w.dtype, row_of(w, v0), words, w.cols, work.tiles, w.ld);
    const QuantTiles codes(w.data, w.dtype, w.rows, w.cols);
    pool.parallel(tile_blocks(words), [&](int64_t panel) {
      for (int64_t s = 0; s < codes.steps; ++s)
        unpack_quant_block(codes, v0 / 32 + panel, s,
                           work.tiles + (panel * codes.steps + s) * kBlockBytes);
    });
  }

  int32_t target(int64_t row) const { return targets.as<const int32_t>()[which[row]]; }

  // sums (+)= the packed weights of a chunk times its rows of w.
  void add_weighted(const Streamed& weights, const TiledWeight& of_chunk, bool continues) const {
    multiply(pool, {.unit = &unit,
                    .turned = true,
                    .w = of_chunk.tiles,
                    .is_short = of_chunk.is_short,
                    .rows = of_chunk.rows,
                    .panels = tile_blocks(w.cols),
                    .x = weights,
                    .sums = work.sums,
                    .continues = continues});
  }

  // f(half) for every 16 rows of the stretch, on the thread that multiplies them.
  template <typename F>
  void for_halves(const Streamed& weights, int64_t words, const F& f) const {
    const int64_t height = 2 * group_blocks(blocks), halves = (rows + 15) / 16;
    in_groups(pool, (halves + height - 1) / height, height, [&](int64_t group, int64_t task, int) {
      const int64_t i = group * height + task;
      if (i < halves) f(Half{work, weights, i / 2, i % 2, blocks, words});
    });
  }
};

// Moves references that a logit of this chunk has passed, and sums the chunk's exponentials.
void take_chunk(const Half& h, const Pass& pass, int64_t v0, bool keep) {
  const Work& work = h.work;
  alignas(64) float most[16], factor[16];
  row_maxima(h, most);
  bool moved = false;
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t row = h.row() + i;
    float& reference = work.reference[row];
    factor[i] = 1;
    if (most[i] > reference + kSlack || v0 == 0) {
      factor[i] = v0 == 0 ? 0.0f : std::exp(reference - most[i]);
      reference = most[i];
      work.total[row] *= factor[i];
      moved = moved || v0 > 0;
    }
    if (row >= pass.rows) continue;
    const int64_t target = pass.target(row) - v0;
    if (target >= 0 && target < h.words)
      work.chosen[row] = h.logits(target / 32)[target % 32 / 16 * 256 + i * 16 + target % 16];
  }
  if (keep && moved) rescale_sums(h, pass.w.cols, factor);
  (work.parts == 1 ? sum_exponentials<false> : sum_exponentials<true>)(h, keep);
}

}  // namespace

bool accepts_tile_head_fwd(const StepArgs& args, bool parts) {
  if (input(args, 3)) return false;
  return are_products(args.in[0], args.in[1], parts) && is_f32(args.out[0]) &&
         is_f32(output(args, 1)) && is_or_absent(output(args, 2), args.in[0].dtype);
}
size_t tile_head_fwd_scratch(const StepArgs& args, int threads) {
  const Operand& x = args.in[0];
  return Work(x.rows, x.dtype, args.in[1], static_cast<bool>(output(args, 2)), false, threads,
              nullptr)
      .bytes;
}

void tile_head_fwd(const Unit& unit, const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &targets = args.in[2], &logp = args.out[0];
  const Operand lse = output(args, 1), slope = output(args, 2);
  const int64_t d = w.cols;
  const bool keep = static_cast<bool>(slope);
  ThreadPool& pool = *args.pool;
  const Work work(x.rows, x.dtype, w, keep, false, pool.threads(), args.scratch);
  for (int64_t i = 0; i < x.rows; ++i) {
    if (targets.as<const int32_t>()[i] >= 0) continue;
    logp.as<float>()[i] = 0;
    if (lse) lse.as<float>()[i] = 0;
    if (slope) std::memset(row_of(slope, i), 0, static_cast<size_t>(d) * dtype_bytes(x.dtype));
  }
  const float skip_below = attr<HeadAttr>(*args.step).skip_below;
  const bool skips = keep && skip_below > 0;
  Pass pass{pool, unit, x, w, targets, work, skips ? kFewWords : kWords};
  auto begin = [&] {
    std::fill_n(work.total, pass.blocks * 32, 0.0f);
    if (skips) std::fill_n(work.sums, tile_blocks(d) * pass.blocks * kSums, 0.0f);
  };
  auto chunk = [&](int64_t v0, int64_t words, const TiledWeight& of_chunk) {
    const Streamed weights(unit, pass.rows, words, work.weights, work.parts);
    std::atomic<bool> any{!skips};
    pass.for_halves(weights, words, [&](const Half& h) {
      take_chunk(h, pass, v0, keep);
      if (skips && clear_small(h, skip_below, pass.rows - h.row())) any = true;
    });
    if (keep && any) pass.add_weighted(weights, of_chunk, skips || v0 > 0);
  };
  auto end = [&] {
    pass.for_halves({}, 0, [&](const Half& h) {
      RowOut out[16];
      for (int64_t row = h.row(); row < std::min(pass.rows, h.row() + 16); ++row) {
        const int32_t to = pass.which[row];
        const float all = work.reference[row] + std::log(work.total[row]);
        logp.as<float>()[to] = work.chosen[row] - all;
        if (lse) lse.as<float>()[to] = all;
        if (!keep) continue;
        // x itself is needed no more.
        uint16_t* base = reinterpret_cast<uint16_t*>(work.x) + row * d;
        copy_weight_row(w, pass.target(row), base);
        out[row - h.row()] = {row_of(slope, to), base, 1.0f / work.total[row]};
      }
      if (keep) store_sums(work, h.block, h.half, pass.blocks, d, out);
    });
  };
  pass.run(begin, chunk, end);
}

bool accepts_tile_head_bwd(const StepArgs& args, bool parts) {
  if (input(args, 6)) return false;
  const Operand &x = args.in[1], dw = output(args, 1);
  return are_products(x, args.in[2], parts && !dw) && is_or_absent(input(args, 5), x.dtype) &&
         is_or_absent(args.out[0], x.dtype) && is_f32(dw);
}
size_t tile_head_bwd_scratch(const StepArgs& args, int threads) {
  const bool make_dx = args.out[0] && !input(args, 5), make_dw = static_cast<bool>(output(args, 1));
  if (!make_dx && !make_dw) return 0;
  return Work(args.in[3].elements(), args.in[1].dtype, args.in[2], make_dx, make_dw, threads,
              nullptr)
      .bytes;
}

void tile_head_bwd(const Unit& unit, const StepArgs& args) {
  const Operand &dlogp = args.in[0], &x = args.in[1], &w = args.in[2], &targets = args.in[3],
                &lse = args.in[4], &dx = args.out[0];
  const Operand slope = input(args, 5), dw = output(args, 1);
  const int64_t d = w.cols;
  ThreadPool& pool = *args.pool;
  const int32_t* target_of = targets.as<const int32_t>();
  if (dx)
    pool.parallel((dx.rows + 15) / 16, [&](int64_t i) {
      for (int64_t m = i * 16; m < std::min(dx.rows, i * 16 + 16); ++m) {
        char* to = row_of(dx, m);
        const float g = dlogp.as<const float>()[m];
        if (target_of[m] < 0)
          std::memset(to, 0, static_cast<size_t>(d) * dtype_bytes(dx.dtype));
        else if (slope && dx.dtype == DType::kF32)
          scale_row(reinterpret_cast<const float*>(row_of(slope, m)), g, d,
                    reinterpret_cast<float*>(to));
        else if (slope)
          scale_row(reinterpret_cast<const uint16_t*>(row_of(slope, m)), g, d,
                    reinterpret_cast<uint16_t*>(to));
      }
    });
  const bool make_dx = dx && !slope;
  if (!make_dx && !dw) return;
  const Work work(targets.elements(), x.dtype, w, make_dx, static_cast<bool>(dw), pool.threads(),
                  args.scratch);
  Pass pass{pool, unit, x, w, targets, work};
  auto chunk = [&](int64_t v0, int64_t words, const TiledWeight& of_chunk) {
    const Streamed weights(unit, pass.rows, words, work.weights, work.parts);
    pass.for_halves(weights, words, [&](const Half& h) {
      float shift[16], g[16];
      int64_t target[16];
      const int64_t rows = std::min<int64_t>(16, pass.rows - h.row());
      for (int64_t i = 0; i < rows; ++i) {
        const int32_t m = pass.which[h.row() + i];
        shift[i] = lse.as<const float>()[m];
        g[i] = dlogp.as<const float>()[m];
        target[i] = target_of[m] - v0;
      }
      (work.parts == 1 ? gradients<false> : gradients<true>)(h, shift, g, target, rows, words,
                                                             attr<HeadAttr>(*args.step).skip_below,
                                                             make_dx);
    });
    if (make_dx) pass.add_weighted(weights, of_chunk, v0 > 0);
    if (!dw) return;
    Operand part = dw;
    part.data = row_of(dw, v0);
    part.rows = words;
    Pieces pieces(work.product);
    multiply_columns(pool, unit, {work.gradient, pass.rows, words, words, DType::kBF16},
                     {work.x, pass.rows, d, d, DType::kBF16},
                     {part, 1.0f, args.accumulates(1) || pass.first > 0}, pieces);
  };
  auto end = [&] {
    if (make_dx)
      pass.for_halves({}, 0, [&](const Half& h) {
        RowOut out[16];
        for (int64_t row = h.row(); row < std::min(pass.rows, h.row() + 16); ++row)
          out[row - h.row()] = {row_of(dx, pass.which[row]), nullptr, -1.0f};
        store_sums(work, h.block, h.half, pass.blocks, d, out);
      });
  };
  pass.run([] {}, chunk, end);
  if (dw && pass.first == 0 && !args.accumulates(1))
    for (int64_t v = 0; v < dw.rows; ++v)
      std::memset(row_of(dw, v), 0, static_cast<size_t>(d) * sizeof(float));
}

}  // namespace wick::cpu
#endif
