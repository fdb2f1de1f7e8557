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
#include <limits>

#include "backend/accepts.h"
#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/tile_kernels.h"

#if WICK_CPU_BF16
#include "base/half.h"
#include "base/threads.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/product-inl.h"

namespace wick::cpu {
namespace {

constexpr int64_t kWords = 1024;    // of the vocabulary in a chunk
constexpr int64_t kFewWords = 256;  // where chunks may be left out
constexpr float kSlack = 8.0f;
constexpr int64_t kSums = 1024;  // elements of one block of sums

// Rows and codes become tiles of bf16, chunk by chunk.
bool needs_tiles(const Operand& w) {
  return w.form != WeightForm::kTiles || dtype_is_quantized(w.dtype);
}

struct Work {
  int32_t* kept;                      // the rows that count
  char *x, *left;                     // those of a stretch, and packed
  float* logits;                      // [panels of the chunk][blocks of rows]
  float *reference, *total, *chosen;  // by row
  char* weights = nullptr;            // left operand of the second product
  float* sums = nullptr;              // its result, [panels of D][blocks of rows]
  char* tiles = nullptr;              // a chunk of w, where w lies in rows
  char* gradient = nullptr;           // bf16 [rows, words of the chunk], for dw
  void* product = nullptr;            // scratch of dw's product
  size_t bytes;

  Work(int64_t m, const Operand& w, bool sum, bool dw, int threads, void* base) {
    const int64_t d = w.cols, rows = std::min(m, kMostRows), words = std::min(w.rows, kWords);
    const int64_t blocks = tile_blocks(rows), panels = tile_blocks(words);
    Pieces pieces(base);
    auto floats = [&](int64_t n) {
      return static_cast<float*>(pieces.take(static_cast<size_t>(n) * sizeof(float)));
    };
    auto bytes_of = [&](size_t n) { return static_cast<char*>(pieces.take(n)); };
    kept = reinterpret_cast<int32_t*>(floats(m));
    x = bytes_of(static_cast<size_t>(rows * d) * 2);
    left = bytes_of(Streamed(rows, d, nullptr).bytes());
    logits = floats(panels * blocks * kSums);
    reference = floats(blocks * 32);
    total = floats(blocks * 32);
    chosen = floats(blocks * 32);
    if (sum) {
      weights = bytes_of(Streamed(rows, words, nullptr).bytes());
      sums = floats(tile_blocks(d) * blocks * kSums);
    }
    if (needs_tiles(w)) tiles = bytes_of(tiles_bytes(words, d));
    if (dw) {
      gradient = bytes_of(static_cast<size_t>(rows * words) * 2);
      product = bytes_of(columns_scratch(rows, words, d, threads));
    }
    bytes = pieces.bytes();
  }
};

}  // namespace
}  // namespace wick::cpu

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

// e^x for x <= 80; 0 below about -87; NaN stays NaN.
inline __m512 exp_f32(__m512 x) {
  const __m512 y =
      _mm512_mul_ps(_mm512_max_ps(_mm512_set1_ps(-200.0f), x), _mm512_set1_ps(1.44269504f));
  const __m512 k = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(y, k);
  __m512 p = _mm512_set1_ps(1.33335581e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.61812910e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, k);
}

// 16 rows of a chunk: half `half` of block `block`.
struct Half {
  const Work& work;
  const Streamed& weights;
  int64_t block, half, blocks;
  int64_t words;

  int64_t row() const { return block * 32 + half * 16; }
  const float* logits(int64_t panel) const {
    return work.logits + (panel * blocks + block) * kSums + half * 512;
  }
  char* packed(int64_t panel) const { return weights.at(block, panel) + half * 1024; }
  __mmask16 mask(int64_t panel, int64_t tile) const {
    return lanes_below(words - panel * 32 - tile * 16);
  }
};

// The largest logit of each row.
void row_maxima(const Half& h, float* most) {
  __m512 top[16];
  const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int i = 0; i < 16; ++i) top[i] = none;
  for (int64_t panel = 0; panel * 32 < h.words; ++panel)
    for (int64_t tile = 0; tile < 2; ++tile) {
      const float* at = h.logits(panel) + tile * 256;
      const __mmask16 mask = h.mask(panel, tile);
      for (int i = 0; i < 16; ++i)
        top[i] = _mm512_mask_max_ps(top[i], mask, top[i], _mm512_load_ps(at + i * 16));
    }
  for (int i = 0; i < 16; ++i) most[i] = _mm512_reduce_max_ps(top[i]);
}

// Adds Σ e^(logit - reference) to each row's total; with `keep`, also packs the terms.
void sum_exponentials(const Half& h, bool keep) {
  const float* reference = h.work.reference + h.row();
  __m512 sum[16];
  for (int i = 0; i < 16; ++i) sum[i] = _mm512_setzero_ps();
  for (int64_t panel = 0; panel * 32 < h.words; ++panel) {
    const float* at = h.logits(panel);
    char* packed = keep ? h.packed(panel) : nullptr;
    const __mmask16 mask0 = h.mask(panel, 0), mask1 = h.mask(panel, 1);
    for (int i = 0; i < 16; ++i) {
      const __m512 shift = _mm512_set1_ps(reference[i]);
      const __m512 e0 =
          _mm512_maskz_mov_ps(mask0, exp_f32(_mm512_sub_ps(_mm512_load_ps(at + i * 16), shift)));
      const __m512 e1 = _mm512_maskz_mov_ps(
          mask1, exp_f32(_mm512_sub_ps(_mm512_load_ps(at + 256 + i * 16), shift)));
      sum[i] = _mm512_add_ps(sum[i], _mm512_add_ps(e0, e1));
      if (keep) _mm512_store_si512(packed + i * 64, round_pairs(e0, e1));
    }
  }
  for (int i = 0; i < 16; ++i) h.work.total[h.row() + i] += _mm512_reduce_add_ps(sum[i]);
}

// Clears packed terms below `share` of their row's total, and rows from `rows` on; whether any is
// left. Terms are not negative, so their bits order as they do.
bool clear_small(const Half& h, float share, int64_t rows) {
  __m512i any = _mm512_setzero_si512();
  for (int64_t i = 0; i < 16; ++i) {
    const bool counts = i < rows;
    const float least = counts ? share * h.work.total[h.row() + i] : 0;
    const __m512i bits = _mm512_set1_epi16(static_cast<int16_t>(to_bf16(least).bits));
    for (int64_t panel = 0; panel * 32 < h.words; ++panel) {
      char* at = h.packed(panel) + i * 64;
      const __m512i v = _mm512_load_si512(at);
      const __mmask32 stays = counts ? _mm512_cmpge_epu16_mask(v, bits) : 0;
      const __m512i left = _mm512_maskz_mov_epi16(stays, v);
      _mm512_store_si512(at, left);
      any = _mm512_or_si512(any, left);
    }
  }
  return _mm512_test_epi32_mask(any, any) != 0;
}

// Multiplies what 16 rows have summed over w by a factor each.
void rescale_sums(const Half& h, int64_t d, const float* factor) {
  for (int64_t panel = 0; panel < tile_blocks(d); ++panel) {
    float* at = h.work.sums + (panel * h.blocks + h.block) * kSums + h.half * 512;
    for (int64_t i = 0; i < 16; ++i) {
      const __m512 f = _mm512_set1_ps(factor[i]);
      for (float* to : {at + i * 16, at + 256 + i * 16})
        _mm512_store_ps(to, _mm512_mul_ps(_mm512_load_ps(to), f));
    }
  }
}

// logits -> dlogp * (1[target] - p), as bf16 rows and as a right operand. `target` < 0 or >= words:
// in another chunk.
void gradients(const Half& h, const float* lse, const float* dlogp, const int64_t* target,
               int64_t rows, int64_t row_words, float skip_below, bool pack) {
  const __m512 least = _mm512_set1_ps(skip_below);
  for (int64_t panel = 0; panel * 32 < h.words; ++panel) {
    const float* at = h.logits(panel);
    char* packed = pack ? h.packed(panel) : nullptr;
    const __mmask16 mask0 = h.mask(panel, 0), mask1 = h.mask(panel, 1);
    for (int64_t i = 0; i < 16; ++i) {
      const bool counts = i < rows;
      const __m512 shift = _mm512_set1_ps(counts ? lse[i] : 0),
                   g = _mm512_set1_ps(counts ? dlogp[i] : 0);
      __m512 e0 = exp_f32(_mm512_sub_ps(_mm512_load_ps(at + i * 16), shift));
      __m512 e1 = exp_f32(_mm512_sub_ps(_mm512_load_ps(at + 256 + i * 16), shift));
      e0 = _mm512_mask_mov_ps(e0, _mm512_cmp_ps_mask(e0, least, _CMP_LT_OQ), _mm512_setzero_ps());
      e1 = _mm512_mask_mov_ps(e1, _mm512_cmp_ps_mask(e1, least, _CMP_LT_OQ), _mm512_setzero_ps());
      const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
      const auto place = static_cast<int>(counts && target[i] / 32 == panel && target[i] >= 0 &&
                                                  target[i] < h.words
                                              ? target[i] % 32
                                              : -1);
      const __mmask16 hit0 = _mm512_cmpeq_epi32_mask(lane, _mm512_set1_epi32(place));
      const __mmask16 hit1 = _mm512_cmpeq_epi32_mask(lane, _mm512_set1_epi32(place - 16));
      const __m512 one = _mm512_set1_ps(1.0f), zero = _mm512_setzero_ps();
      e0 = _mm512_sub_ps(_mm512_mask_mov_ps(zero, hit0, one), e0);
      e1 = _mm512_sub_ps(_mm512_mask_mov_ps(zero, place >= 16 ? hit1 : 0, one), e1);
      const __m512i v =
          round_pairs(_mm512_maskz_mul_ps(mask0, e0, g), _mm512_maskz_mul_ps(mask1, e1, g));
      if (pack) _mm512_store_si512(packed + i * 64, v);
      if (counts && h.work.gradient != nullptr)
        _mm512_mask_storeu_epi16(h.work.gradient + ((h.row() + i) * row_words + panel * 32) * 2,
                                 words_below(h.words - panel * 32), v);
    }
  }
}

// Where a row of the finished sums goes: base - factor * sum, with base a row of bf16 or nothing.
struct RowOut {
  uint16_t* to = nullptr;  // null: nowhere
  const uint16_t* base = nullptr;
  float factor = 0;
};
void store_sums(const Work& work, int64_t block, int64_t half, int64_t blocks, int64_t d,
                const RowOut* rows) {
  for (int64_t panel = 0; panel < tile_blocks(d); ++panel) {
    const float* from = work.sums + (panel * blocks + block) * kSums + half * 512;
    const __mmask32 mask = words_below(d - panel * 32);
    for (int64_t i = 0; i < 16; ++i) {
      const RowOut& row = rows[i];
      if (row.to == nullptr) continue;
      const __m512i base = row.base != nullptr
                               ? _mm512_maskz_loadu_epi16(mask, row.base + panel * 32)
                               : _mm512_setzero_si512();
      const __m512 f = _mm512_set1_ps(row.factor);
      const __m512 v0 = _mm512_fnmadd_ps(_mm512_load_ps(from + i * 16), f,
                                         widen_words(_mm512_castsi512_si256(base)));
      const __m512 v1 = _mm512_fnmadd_ps(_mm512_load_ps(from + 256 + i * 16), f,
                                         widen_words(_mm512_extracti64x4_epi64(base, 1)));
      _mm512_mask_storeu_epi16(row.to + panel * 32, mask, round_pairs(v0, v1));
    }
  }
}

// Row `row` of w, in tiles or not, as bf16.
void copy_weight_row(const Operand& w, int64_t row, uint16_t* to) {
  if (dtype_is_quantized(w.dtype))
    return unpack_quant_row(QuantTiles(w.data, w.dtype, w.rows, w.cols), row,
                            reinterpret_cast<bf16*>(to));
  if (w.form == WeightForm::kTiles)
    return copy_tile_row(w.as<const char>(), row, w.cols, DType::kBF16, to);
  for (int64_t c = 0; c < w.cols; c += 32) {
    const __mmask32 mask = words_below(w.cols - c);
    const int64_t at = row * w.ld + c;
    const __m512i v = w.dtype == DType::kF32    ? load_words(w.as<const float>() + at, mask)
                      : w.dtype == DType::kBF16 ? load_words(w.as<const bf16>() + at, mask)
                                                : load_words(w.as<const f16>() + at, mask);
    _mm512_mask_storeu_epi16(to + c, mask, v);
  }
}

// dx = dlogp * slope.
void scale_row(const uint16_t* from, float g, int64_t d, uint16_t* to) {
  const __m512 factor = _mm512_set1_ps(g);
  for (int64_t c = 0; c < d; c += 32) {
    const __mmask32 mask = words_below(d - c);
    const __m512i v = _mm512_maskz_loadu_epi16(mask, from + c);
    _mm512_mask_storeu_epi16(
        to + c, mask,
        round_pairs(_mm512_mul_ps(widen_words(_mm512_castsi512_si256(v)), factor),
                    _mm512_mul_ps(widen_words(_mm512_extracti64x4_epi64(v, 1)), factor)));
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END

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
bool is_bf16_or_absent(const Operand& o) { return !o || o.dtype == DType::kBF16; }

int64_t kept_rows(const Operand& targets, int32_t* rows) {
  int64_t kept = 0;
  for (int64_t m = 0; m < targets.elements(); ++m)
    if (targets.as<const int32_t>()[m] >= 0) rows[kept++] = static_cast<int32_t>(m);
  return kept;
}

// The supervised rows, stretch by stretch, and the chunks of the vocabulary with their logits.
// begin(which, rows) before a stretch, chunk(v0, words, tiles) with logits made, end() after it.
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
      const Operand picked{work.x, rows, d, d, DType::kBF16};
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(row_of(picked, r), row_of(x, which[r]), static_cast<size_t>(d) * 2);
      const Streamed left(rows, d, work.left);
      pack_left(pool, picked, 0, rows, left);
      begin();
      for (int64_t v0 = 0; v0 < w.rows; v0 += chunk_words) {
        const int64_t words = std::min(chunk_words, w.rows - v0);
        const char* tiles = w.as<const char>() + v0 / 32 * tile_blocks(d) * kBlockBytes;
        if (needs_tiles(w)) {
          make_tiles(v0, words);
          tiles = work.tiles;
        }
        multiply(pool, {.unit = &unit,
                        .w = tiles,
                        .panels = tile_blocks(words),
                        .x = left,
                        .sums = work.logits});
        chunk(v0, words, tiles);
      }
      end();
    }
  }

  void make_tiles(int64_t v0, int64_t words) const {
    if (w.form != WeightForm::kTiles)
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
  void add_weighted(const Streamed& weights, const char* tiles, bool continues) const {
    multiply(pool, {.unit = &unit,
                    .turned = true,
                    .w = tiles,
                    .panels = tile_blocks(w.cols),
                    .x = weights,
                    .sums = work.sums,
                    .continues = continues});
  }

  // f(half) for every 16 rows of the stretch.
  template <typename F>
  void for_halves(const Streamed& weights, int64_t words, const F& f) const {
    pool.parallel((rows + 15) / 16, [&](int64_t i) {
      f(Half{work, weights, i / 2, i % 2, blocks, words});
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
  sum_exponentials(h, keep);
}

}  // namespace

bool accepts_tile_head_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], slope = output(args, 2);
  return is_bf16(x) && is_matrix(args.in[1]) && is_f32(args.out[0]) && is_f32(output(args, 1)) &&
         is_bf16_or_absent(slope);
}
size_t tile_head_fwd_scratch(const StepArgs& args, int threads) {
  return Work(args.in[0].rows, args.in[1], static_cast<bool>(output(args, 2)), false, threads,
              nullptr)
      .bytes;
}

void tile_head_fwd(const Unit& unit, const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &targets = args.in[2], &logp = args.out[0];
  const Operand lse = output(args, 1), slope = output(args, 2);
  const int64_t d = w.cols;
  const bool keep = static_cast<bool>(slope);
  ThreadPool& pool = *args.pool;
  const Work work(x.rows, w, keep, false, pool.threads(), args.scratch);
  for (int64_t i = 0; i < x.rows; ++i) {
    if (targets.as<const int32_t>()[i] >= 0) continue;
    logp.as<float>()[i] = 0;
    if (lse) lse.as<float>()[i] = 0;
    if (slope) std::memset(row_of(slope, i), 0, static_cast<size_t>(d) * 2);
  }
  const float skip_below = attr<HeadAttr>(*args.step).skip_below;
  const bool skips = keep && skip_below > 0;
  Pass pass{pool, unit, x, w, targets, work, skips ? kFewWords : kWords};
  auto begin = [&] {
    std::fill_n(work.total, pass.blocks * 32, 0.0f);
    if (skips) std::fill_n(work.sums, tile_blocks(d) * pass.blocks * kSums, 0.0f);
  };
  auto chunk = [&](int64_t v0, int64_t words, const char* tiles) {
    const Streamed weights(pass.rows, words, work.weights);
    std::atomic<bool> any{!skips};
    pass.for_halves(weights, words, [&](const Half& h) {
      take_chunk(h, pass, v0, keep);
      if (skips && clear_small(h, skip_below, pass.rows - h.row())) any = true;
    });
    if (keep && any) pass.add_weighted(weights, tiles, skips || v0 > 0);
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
        out[row - h.row()] = {reinterpret_cast<uint16_t*>(row_of(slope, to)), base,
                              1.0f / work.total[row]};
      }
      if (keep) store_sums(work, h.block, h.half, pass.blocks, d, out);
    });
  };
  pass.run(begin, chunk, end);
}

bool accepts_tile_head_bwd(const StepArgs& args) {
  return is_bf16(args.in[1]) && is_matrix(args.in[2]) && is_bf16_or_absent(input(args, 5)) &&
         is_bf16_or_absent(args.out[0]) && is_f32(output(args, 1));
}
size_t tile_head_bwd_scratch(const StepArgs& args, int threads) {
  const bool make_dx = args.out[0] && !input(args, 5), make_dw = static_cast<bool>(output(args, 1));
  if (!make_dx && !make_dw) return 0;
  return Work(args.in[3].elements(), args.in[2], make_dx, make_dw, threads, nullptr).bytes;
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
        auto* to = reinterpret_cast<uint16_t*>(row_of(dx, m));
        if (target_of[m] < 0)
          std::memset(to, 0, static_cast<size_t>(d) * 2);
        else if (slope)
          scale_row(reinterpret_cast<const uint16_t*>(row_of(slope, m)), dlogp.as<const float>()[m],
                    d, to);
      }
    });
  const bool make_dx = dx && !slope;
  if (!make_dx && !dw) return;
  const Work work(targets.elements(), w, make_dx, static_cast<bool>(dw), pool.threads(),
                  args.scratch);
  Pass pass{pool, unit, x, w, targets, work};
  auto chunk = [&](int64_t v0, int64_t words, const char* tiles) {
    const Streamed weights(pass.rows, words, work.weights);
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
      gradients(h, shift, g, target, rows, words, attr<HeadAttr>(*args.step).skip_below, make_dx);
    });
    if (make_dx) pass.add_weighted(weights, tiles, v0 > 0);
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
          out[row - h.row()] = {reinterpret_cast<uint16_t*>(row_of(dx, pass.which[row])), nullptr,
                                -1.0f};
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
