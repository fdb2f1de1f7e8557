// SPDX-License-Identifier: Apache-2.0
// Packing is bound by bytes; so is decoding: two shuffles and four interleavings make four lines.
#include "backend/cpu/short_tiles.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/stretches.h"
#include "backend/host_program.h"
#include "base/threads.h"

#if WICK_CPU_BF16
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/addends-inl.h"

namespace wick::cpu {
namespace {

constexpr int64_t kFours = 4;           // of 16 lines, in each tile
constexpr int64_t kFourBytes = 3 * 64;  // of four lines
constexpr int64_t kFewBytes = 64 << 10;

// Where byte p of 64 upper bytes of a tile's lines 2 i and 2 i + 1 belongs.
int64_t number_at(int64_t tile, int64_t pair_of_lines, int64_t p) {
  const int64_t line = 2 * pair_of_lines + p % 16 / 8;
  return (tile * 16 + line) * 32 + p / 16 * 8 + p % 8;
}

bool add_odd(ShortHead& head, int64_t at, uint8_t upper) {
  if (head.odd == kShortOdd) return false;
  head.at[head.odd] = static_cast<uint16_t>(at);
  head.upper[head.odd++] = upper;
  return true;
}

// The sixteen upper bytes that most of a block's numbers have.
void most_frequent(const uint16_t* numbers, uint8_t table[16]) {
  int count[256] = {};
  for (int64_t i = 0; i < kBlockElements; ++i) ++count[numbers[i] >> 8];
  uint8_t bytes[256];
  std::iota(bytes, bytes + 256, uint8_t{0});
  std::partial_sort(bytes, bytes + 16, bytes + 256, [&](uint8_t a, uint8_t b) {
    return count[a] != count[b] ? count[a] > count[b] : a < b;
  });
  std::copy_n(bytes, 16, table);
}

// Any block.
bool shorten_by_count(const uint16_t* numbers, char* to) {
  ShortHead head = {};
  most_frequent(numbers, head.table);
  int place[256];
  std::fill_n(place, 256, -1);
  for (int i = 0; i < 16; ++i) place[head.table[i]] = i;
  char* out = to + sizeof(ShortHead);
  for (int64_t four = 0; four < kFours; ++four)
    for (int64_t tile = 0; tile < 2; ++tile, out += kFourBytes)
      for (int64_t half = 0; half < 2; ++half)
        for (int64_t p = 0; p < 64; ++p) {
          const int64_t at = number_at(tile, 2 * four + half, p);
          const auto upper = static_cast<uint8_t>(numbers[at] >> 8);
          int in_table = place[upper];
          if (in_table < 0) {
            if (!add_odd(head, at, upper)) return false;
            in_table = 0;
          }
          out[p] = static_cast<char>(half == 0 ? in_table : out[p] | in_table << 4);
          out[64 + half * 64 + p] = static_cast<char>(numbers[at] & 0xff);
        }
  std::memcpy(to, &head, sizeof head);
  return true;
}

}  // namespace
}  // namespace wick::cpu

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

// Blocks whose numbers lie within sixteen powers of two below the largest, but for a few: those of
// most matrices. False: they do not.
bool shorten_by_range(const uint16_t* numbers, char* to) {
  __m512i most = _mm512_setzero_si512();
  for (int64_t i = 0; i < kBlockElements; i += 32)
    most = _mm512_max_epu16(
        most, _mm512_and_si512(_mm512_load_si512(numbers + i), _mm512_set1_epi16(0x7f00)));
  const __m512i pair = _mm512_max_epu32(_mm512_srli_epi32(most, 16),
                                        _mm512_and_si512(most, _mm512_set1_epi32(0xffff)));
  const int first = std::max(0, static_cast<int>(_mm512_reduce_max_epu32(pair) >> 8) - 7);
  ShortHead head = {};
  for (int i = 0; i < 16; ++i) head.table[i] = static_cast<uint8_t>((i & 8) << 4 | (first + i % 8));
  const __m512i begin = _mm512_set1_epi8(static_cast<char>(first));
  char* out = to + sizeof(ShortHead);
  for (int64_t four = 0; four < kFours; ++four)
    for (int64_t tile = 0; tile < 2; ++tile, out += kFourBytes) {
      __m512i places[2];
      for (int64_t half = 0; half < 2; ++half) {
        const uint16_t* line = numbers + number_at(tile, 2 * four + half, 0);
        const __m512i a = _mm512_load_si512(line), b = _mm512_load_si512(line + 32);
        const __m512i low = _mm512_set1_epi16(0xff);
        const __m512i upper = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
        const __m512i exponent = _mm512_and_si512(upper, _mm512_set1_epi8(0x7f));
        uint64_t odd = _mm512_cmplt_epu8_mask(exponent, begin);
        for (; odd != 0; odd &= odd - 1) {
          const int64_t at = number_at(tile, 2 * four + half, __builtin_ctzll(odd));
          if (!add_odd(head, at, static_cast<uint8_t>(numbers[at] >> 8))) return false;
        }
        const __m512i sign = _mm512_and_si512(_mm512_srli_epi16(upper, 4), _mm512_set1_epi8(0x08));
        const __m512i range =
            _mm512_and_si512(_mm512_sub_epi8(exponent, begin), _mm512_set1_epi8(0x07));
        places[half] = _mm512_or_si512(sign, range);
        _mm512_store_si512(out + 64 + half * 64,
                           _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low)));
      }
      _mm512_store_si512(out, _mm512_or_si512(places[0], _mm512_slli_epi16(places[1], 4)));
    }
  std::memcpy(to, &head, sizeof head);
  return true;
}

inline __m512i table_of(const char* block) {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(block)));
}

// Four lines, whose 192 bytes are at `from`.
inline void four_lines(const char* from, __m512i table, __m512i line[4]) {
  const __m512i low = _mm512_set1_epi8(0x0f), places = _mm512_load_si512(from);
  const __m512i first = _mm512_shuffle_epi8(table, _mm512_and_si512(places, low));
  const __m512i second =
      _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(places, 4), low));
  const __m512i a = _mm512_load_si512(from + 64), b = _mm512_load_si512(from + 128);
  line[0] = _mm512_unpacklo_epi8(a, first);
  line[1] = _mm512_unpackhi_epi8(a, first);
  line[2] = _mm512_unpacklo_epi8(b, second);
  line[3] = _mm512_unpackhi_epi8(b, second);
}

// The sums of few_rows() in dot.cpp over one block, whose lines come from `lines(four, tile, out)`.
template <int Rows, typename Lines>
inline __attribute__((always_inline)) void add_block(const char* a, __m512 sum[2][Rows],
                                                     const Lines& lines) {
  for (int64_t four = 0; four < kFours; ++four) {
    __m512i line[2][4];
    lines(four, 0, line[0]);
    lines(four, 1, line[1]);
    WICK_UNROLL
    for (int64_t j = 0; j < 4; ++j) {
      WICK_UNROLL
      for (int i = 0; i < Rows; ++i) {
        int pair;
        std::memcpy(&pair, a + i * 64 + (four * 4 + j) * 4, sizeof pair);
        const auto av = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        sum[0][i] = _mm512_dpbf16_ps(sum[0][i], av, reinterpret_cast<__m512bh>(line[0][j]));
        sum[1][i] = _mm512_dpbf16_ps(sum[1][i], av, reinterpret_cast<__m512bh>(line[1][j]));
      }
    }
  }
}

// Lines as they lie in a block, and in one of tiles.h.
struct ShortLines {
  const char* at;
  __m512i table;
  inline __attribute__((always_inline)) void operator()(int64_t four, int64_t tile,
                                                        __m512i line[4]) const {
    four_lines(at + (four * 2 + tile) * kFourBytes, table, line);
  }
};
struct TileLines {
  const char* at;
  inline __attribute__((always_inline)) void operator()(int64_t four, int64_t tile,
                                                        __m512i line[4]) const {
    for (int64_t j = 0; j < 4; ++j)
      line[j] = _mm512_load_si512(at + tile * 1024 + (four * 4 + j) * 64);
  }
};

// One panel; c as Block::c has it. `a_step`: bytes from a step of x to the next.
template <int Rows>
void few_rows(const char* at, const char* a, int64_t a_step, int64_t steps, float* c) {
  __m512 sum[2][Rows];
  for (int i = 0; i < Rows; ++i) sum[0][i] = sum[1][i] = _mm512_setzero_ps();
  alignas(64) char tiles[kBlockBytes];
  for (int64_t s = 0; s < steps; ++s, a += a_step, at += kShortBlockBytes) {
    if (reinterpret_cast<const ShortHead*>(at)->odd == 0) [[likely]] {
      add_block<Rows>(a, sum, ShortLines{at + sizeof(ShortHead), table_of(at)});
    } else {
      unpack_short_block(at, tiles);
      add_block<Rows>(a, sum, TileLines{tiles});
    }
  }
  for (int i = 0; i < Rows; ++i) {
    _mm512_store_ps(c + i * 16, sum[0][i]);
    _mm512_store_ps(c + i * 16 + 256, sum[1][i]);
  }
}

}  // namespace

void unpack_short_block(const char* block, char* to) {
  const __m512i table = table_of(block);
  const char* at = block + sizeof(ShortHead);
  for (int64_t four = 0; four < kFours; ++four)
    for (int64_t tile = 0; tile < 2; ++tile, at += kFourBytes) {
      __m512i line[4];
      four_lines(at, table, line);
      for (int64_t j = 0; j < 4; ++j)
        _mm512_store_si512(to + tile * 1024 + (four * 4 + j) * 64, line[j]);
    }
  const auto* head = reinterpret_cast<const ShortHead*>(block);
  for (int i = 0; i < head->odd; ++i)
    to[2 * head->at[i] + 1] = static_cast<char>(head->upper[i]);
}

void copy_short_row(const char* w, int64_t row, int64_t k, DType dtype, void* to) {
  const char* block = w + row / 32 * tile_blocks(k) * kShortBlockBytes;
  const auto element = static_cast<int64_t>(dtype_bytes(dtype));
  alignas(64) char tiles[kBlockBytes];
  for (int64_t c = 0; c < k; c += 32, block += kShortBlockBytes) {
    unpack_short_block(block, tiles);
    copy_tile_row(tiles, row % 32, std::min<int64_t>(32, k - c), dtype,
                  static_cast<char*>(to) + c * element);
  }
}

}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {

bool pack_short_tiles(ThreadPool& pool, DType from, const void* rows, int64_t n, int64_t k,
                      void* to) {
  const int64_t steps = tile_blocks(k), panels = tile_blocks(n);
  const int64_t stride = k * static_cast<int64_t>(dtype_bytes(from)) * kTileBlock;
  const size_t room = tiles_bytes(kTileBlock, k);
  const HostBuffer tiles(room * static_cast<size_t>(pool.threads()));
  std::atomic<bool> fits{true};
  pool.parallel(panels, [&](int64_t p, int worker) {
    if (!fits) return;
    char* panel = reinterpret_cast<char*>(tiles.data()) + room * static_cast<size_t>(worker);
    pack_tile_panel(from, static_cast<const char*>(rows) + p * stride,
                    std::min(kTileBlock, n - p * kTileBlock), k, panel);
    for (int64_t s = 0; s < steps; ++s) {
      const auto* numbers = reinterpret_cast<const uint16_t*>(panel + s * kBlockBytes);
      char* block = static_cast<char*>(to) + (p * steps + s) * kShortBlockBytes;
      if (!shorten_by_range(numbers, block) && !shorten_by_count(numbers, block)) fits = false;
    }
  });
  return fits;
}

void multiply_few_short(ThreadPool& pool, const Operand& x, const char* w, const Finish& finish,
                        void* scratch) {
  const int64_t steps = tile_blocks(x.cols), panels = tile_blocks(finish.y.cols);
  char* left = static_cast<char*>(scratch);
  pack_few(x, steps, left);
  const int64_t panel_bytes = steps * kShortBlockBytes;
  const int64_t grain = std::max<int64_t>(1, kFewBytes / panel_bytes);
  constexpr int64_t kAtOnce = 8;
  constexpr decltype(&few_rows<1>) kFew[kAtOnce] = {few_rows<1>, few_rows<2>, few_rows<3>,
                                                    few_rows<4>, few_rows<5>, few_rows<6>,
                                                    few_rows<7>, few_rows<8>};
  in_stretches(pool, (panels + grain - 1) / grain, [&](auto next) {
    alignas(64) float c[2 * 256];
    PanelAddends addends;
    for (int64_t i; (i = next()) >= 0;)
      for (int64_t p = i * grain; p < std::min(panels, (i + 1) * grain); ++p) {
        for (int64_t row = 0; row < x.rows; row += kAtOnce)
          kFew[std::min(kAtOnce, x.rows - row) - 1](w + p * panel_bytes, left + row * 64,
                                                    x.rows * 64, steps, c + row * 16);
        finish_few(c, addends, finish, p);
      }
  });
}

}  // namespace wick::cpu

#else

namespace wick::cpu {
bool pack_short_tiles(ThreadPool&, DType, const void*, int64_t, int64_t, void*) { return false; }
}  // namespace wick::cpu

#endif
