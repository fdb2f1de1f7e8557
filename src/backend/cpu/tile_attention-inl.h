// SPDX-License-Identifier: Apache-2.0
// What attention forward and backward in tiles of bf16 share: operands as plain pointers, packing
// into tiles, products of tiles, 2^x.
//
// A row is a (position, query head) pair, positions first; the heads that share a kv head are rows
// of one product. Scores are made transposed, as tiles [16 keys][16 rows]: rows lie across a
// vector, so that nothing is summed over lanes and a row's maximum, sum and bounds are lanes too.
// Every size is padded with zeros to a multiple of 32, in packed scratch only.
#pragma once

#include "backend/cpu/bf16-inl.h"

#if WICK_CPU_BF16
#include "backend/cpu/product.h"
#include "backend/kernels.h"

namespace wick::cpu::tile_attention {

constexpr int64_t kTile = 16;        // rows of a tile
constexpr int64_t kStep = 32;        // elements of the sum in one product of tiles
constexpr int64_t kTileSize = 1024;  // bytes
constexpr int64_t kMaxHead = 256;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

constexpr int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// The bf16 elements of an operand as bits, or null.
struct Halves {
  uint16_t* data = nullptr;
  int64_t ld = 0;
  Halves() = default;
  explicit Halves(const Operand& o) : data(static_cast<uint16_t*>(o.data)), ld(o.ld) {}
  uint16_t* at(int64_t row, int64_t col) const { return data + row * ld + col; }
};

struct Heads {
  int64_t kv_heads, e, group;  // group: query heads of a kv head
  int64_t steps, e_tiles;      // of a padded head
  float scale;
  int64_t window;
  explicit Heads(const AttentionAttr& a)
      : kv_heads(a.kv_heads),
        e(a.head_dim),
        group(a.heads / a.kv_heads),
        steps(up(a.head_dim, kStep) / kStep),
        e_tiles(2 * steps),
        scale(a.scale),
        window(a.window) {}
};

// The lowest and highest first key, and one past the last, that rows of a tile or a pair see.
struct Bounds {
  int32_t low_min, low_max, high_min, high_max;
};

// Hands out stretches of scratch, each on a cache line of its own.
class Carve {
 public:
  explicit Carve(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    std::byte* at = base_ + used_;
    used_ += up(count * static_cast<int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(at);
  }
  std::byte* tiles(int64_t count) { return take<std::byte>(count * kTileSize); }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

// Scratch starts where the arena put it; kernels want lines.
inline std::byte* aligned(void* scratch) {
  return reinterpret_cast<std::byte*>(up(reinterpret_cast<int64_t>(scratch), 64));
}

inline bool is_bf16(const Operand& o) { return !o || o.dtype == DType::kBF16; }
inline bool takes_heads(const StepArgs& args) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  return a.head_dim <= kMaxHead && a.scale > 0;
}

}  // namespace wick::cpu::tile_attention

WICK_BF16_BEGIN
namespace wick::cpu::tile_attention {

using Vec = __m512;

// The compiler does not know that tile operations touch memory.
inline void memory_fence() { asm volatile("" ::: "memory"); }

inline __mmask32 first_of(int64_t n) { return n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1; }

// 2^x for x <= 127; relative error 1e-7, exact at 0, 0 at -infinity.
inline Vec exp2_v(Vec x) {
  const Vec f = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
  Vec p = _mm512_set1_ps(1.86713028e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.01702978e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.57999127e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40164444e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93151295e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);  // takes the floor of x itself
}

// The lanes whose row sees key j; all where nothing is masked.
template <bool Masked>
inline __mmask16 inside(__m512i low, __m512i high, int64_t j) {
  if constexpr (!Masked) return 0xffff;
  const __m512i at = _mm512_set1_epi32(static_cast<int32_t>(j));
  return _mm512_mask_cmp_epi32_mask(_mm512_cmp_epi32_mask(low, at, _MM_CMPINT_LE), at, high,
                                    _MM_CMPINT_LT);
}

// Dwords [16][16].
inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  WICK_UNROLL
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  WICK_UNROLL
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  WICK_UNROLL
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
  WICK_UNROLL
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[4 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[4 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0xdd);
  }
}

// Elements 0 to 15 of a and of b in turn, or 16 to 31.
inline __m512i interleave(__m512i a, __m512i b, bool high) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i index = high ? _mm512_add_epi16(low, _mm512_set1_epi16(16)) : low;
  return _mm512_permutex2var_epi16(a, index, b);
}

// 32 floats, a's first, rounded.
inline __m512i round_pair(Vec a, Vec b) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
}

// Brings a row near before it is read, or written.
template <bool Write = false>
inline void bring_row(const uint16_t* row, int64_t e) {
  const char* at = reinterpret_cast<const char*>(row);
  for (int64_t i = 0; i < 2 * e; i += 64) __builtin_prefetch(at + i, Write, Write ? 3 : 2);
}

// The rows of a stretch of (position, head) pairs, in order; null past the end. Rows are brought
// near 32 or so before their turn.
struct RowWalk {
  uint16_t* at;
  int64_t jump, e, group, left;  // jump: from a position's first head to the next's
  int64_t head = 0;
  int64_t ahead = up(kStep, group) / group * jump;
  template <bool Write = false>
  uint16_t* next() {
    if (left == 0) return nullptr;
    --left;
    uint16_t* row = at + head * e;
    bring_row<Write>(row + ahead, e);
    if (++head == group) head = 0, at += jump;
    return row;
  }
};

inline __m512i load_step(const uint16_t* row, int64_t step, int64_t e) {
  if (row == nullptr) return _mm512_setzero_si512();
  const int64_t left = e - step * kStep;
  if (left >= kStep) return _mm512_loadu_si512(row + step * kStep);
  return _mm512_maskz_loadu_epi16(first_of(left), row + step * kStep);
}

// 16 rows as left tiles [16 rows][32 of e], one per step.
inline void pack_left(const uint16_t* const* rows, const Heads& h, std::byte* to) {
  for (int64_t s = 0; s < h.steps; ++s)
    for (int64_t i = 0; i < kTile; ++i)
      _mm512_store_si512(to + s * kTileSize + i * 64, load_step(rows[i], s, h.e));
}

// 16 rows as right tiles [16 pairs of e][16 rows][2], one per step: the sum runs over e.
inline void pack_right(const uint16_t* const* rows, const Heads& h, std::byte* to) {
  for (int64_t s = 0; s < h.steps; ++s) {
    __m512i r[16];
    WICK_UNROLL
    for (int i = 0; i < 16; ++i) r[i] = load_step(rows[i], s, h.e);
    transpose(r);
    WICK_UNROLL
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + s * kTileSize + i * 64, r[i]);
  }
}

// 32 rows as right tiles [16 pairs of rows][16 of e][2], one per 16 of e: the sum runs over rows.
inline void pack_right_rows(const uint16_t* const* rows, const Heads& h, std::byte* to) {
  for (int64_t s = 0; s < h.steps; ++s)
    for (int64_t i = 0; i < kTile; ++i) {
      const __m512i a = load_step(rows[2 * i], s, h.e), b = load_step(rows[2 * i + 1], s, h.e);
      _mm512_store_si512(to + (2 * s) * kTileSize + i * 64, interleave(a, b, false));
      _mm512_store_si512(to + (2 * s + 1) * kTileSize + i * 64, interleave(a, b, true));
    }
}

// 32 rows as left tiles [16 of e][32 rows], one per 16 of e: the sum runs over rows.
inline void pack_left_rows(const uint16_t* const* rows, const Heads& h, std::byte* to) {
  for (int64_t t = 0; t < h.e_tiles; ++t) {
    const int64_t left = most(0, least(kTile, h.e - t * kTile));
    const __mmask16 mask = static_cast<__mmask16>(first_of(left));
    __m512i r[16];
    WICK_UNROLL
    for (int i = 0; i < 16; ++i) {
      const uint16_t *a = rows[2 * i], *b = rows[2 * i + 1];
      const __m256i low =
          a == nullptr ? _mm256_setzero_si256() : _mm256_maskz_loadu_epi16(mask, a + t * kTile);
      const __m256i high =
          b == nullptr ? _mm256_setzero_si256() : _mm256_maskz_loadu_epi16(mask, b + t * kTile);
      r[i] = interleave(_mm512_castsi256_si512(low), _mm512_castsi256_si512(high), false);
    }
    transpose(r);
    WICK_UNROLL
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + t * kTileSize + i * 64, r[i]);
  }
}

// Where the tiles of an operand lie: bytes to the next tile across the sum and along it.
struct Tiles {
  std::byte* at;
  int64_t across, along;
};

// What multiplies, on each rung: C[32, 16 * Columns] (+)= A B over `steps` steps of the sum; C's
// tiles by rows `down` apart, by columns `right` apart. A thread calls begin() before its products
// and end() after them.
struct AmxTiles {
  static void begin() { kAmxUnit.begin(16); }
  static void end() { kAmxUnit.end(); }
  template <int Columns, bool Continue>
  static void multiply(const Tiles& a, const Tiles& b, int64_t steps, std::byte* c, int64_t down,
                       int64_t right) {
    if constexpr (Continue) {
      _tile_loadd(0, c, 64);
      _tile_loadd(2, c + down, 64);
      if constexpr (Columns == 2) {
        _tile_loadd(1, c + right, 64);
        _tile_loadd(3, c + down + right, 64);
      }
    } else {
      _tile_zero(0);
      _tile_zero(2);
      if constexpr (Columns == 2) {
        _tile_zero(1);
        _tile_zero(3);
      }
    }
    const std::byte *left = a.at, *top = b.at;
    for (int64_t s = 0; s < steps; ++s, left += a.along, top += b.along) {
      _tile_loadd(4, left, 64);
      _tile_loadd(6, top, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, left + a.across, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (Columns == 2) {
        _tile_loadd(7, top + b.across, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, c, 64);
    _tile_stored(2, c + down, 64);
    if constexpr (Columns == 2) {
      _tile_stored(1, c + right, 64);
      _tile_stored(3, c + down + right, 64);
    }
  }
};

// With AVX-512's dot products of bf16 pairs: some rows of both tiles' sums stay in registers.
class Dots {
 public:
  static void begin() {}
  static void end() {}
  template <int Columns, bool Continue>
  static void multiply(const Tiles& a, const Tiles& b, int64_t steps, std::byte* c, int64_t down,
                       int64_t right) {
    constexpr int kRows = 16 / Columns;
    for (int64_t tile = 0; tile < 2; ++tile)
      for (int64_t row = 0; row < kTile; row += kRows)
        some_rows<kRows, Columns, Continue>({a.at + tile * a.across + row * 64, 0, a.along}, b,
                                            steps, c + tile * down + row * 64, right);
  }

 private:
  template <int Rows, int Columns, bool Continue>
  static void some_rows(const Tiles& a, const Tiles& b, int64_t steps, std::byte* c,
                        int64_t right) {
    Vec sum[Rows][Columns];
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      WICK_UNROLL
      for (int n = 0; n < Columns; ++n)
        sum[i][n] = Continue ? _mm512_load_ps(c + n * right + i * 64) : _mm512_setzero_ps();
    }
    const std::byte *left = a.at, *top = b.at;
    for (int64_t s = 0; s < steps; ++s, left += a.along, top += b.along)
      for (int64_t pair = 0; pair < kTile; ++pair) {
        __m512bh across[Columns];
        WICK_UNROLL
        for (int n = 0; n < Columns; ++n)
          across[n] = reinterpret_cast<__m512bh>(_mm512_load_si512(top + n * b.across + pair * 64));
        WICK_UNROLL
        for (int i = 0; i < Rows; ++i) {
          int both;
          __builtin_memcpy(&both, left + i * 64 + pair * 4, sizeof both);
          const auto down = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
          WICK_UNROLL
          for (int n = 0; n < Columns; ++n)
            sum[i][n] = _mm512_dpbf16_ps(sum[i][n], down, across[n]);
        }
      }
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      WICK_UNROLL
      for (int n = 0; n < Columns; ++n) _mm512_store_ps(c + n * right + i * 64, sum[i][n]);
    }
  }
};

// [16 of e][16 rows] in f32, times a factor by row, as halves of each row; null rows are left out.
inline void unpack_tile(const std::byte* from, Vec factor, uint16_t* const* rows, int64_t offset,
                        int64_t count) {
  __m512i r[16];
  WICK_UNROLL
  for (int i = 0; i < 16; ++i)
    r[i] = _mm512_castps_si512(
        _mm512_mul_ps(_mm512_load_ps(reinterpret_cast<const float*>(from) + i * 16), factor));
  transpose(r);
  const __mmask16 mask = static_cast<__mmask16>(first_of(count));
  WICK_UNROLL
  for (int i = 0; i < 16; ++i)
    if (rows[i] != nullptr)
      _mm256_mask_storeu_epi16(
          rows[i] + offset, mask,
          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_castsi512_ps(r[i]))));
}

}  // namespace wick::cpu::tile_attention
WICK_BF16_END
#endif
