// SPDX-License-Identifier: Apache-2.0
// The product of two panels on AMX's tiles, and the search for the unit. Four tiles are read for
// four products of 16 cycles, which hide the reads; on a processor at its limit of current (two
// cores, random numbers) a product takes 39 cycles and a read 30, and nothing hides either.
#include "backend/cpu/amx.h"

#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/product.h"
#include "backend/cpu/rungs.h"

#if WICK_CPU_BF16
#include <cpuid.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/half.h"
#endif

#if WICK_CPU_BF16
WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

// GCC's tile operations do not say which memory they touch.
inline void memory_fence() { asm volatile("" ::: "memory"); }

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Tiles 0 to 3 hold C, 4 and 5 A, each `rows` high; 6 and 7 hold B.
void load_config(int rows) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i < 6 && rows < 16 ? rows : 16);
  }
  memory_fence();
  _tile_loadconfig(&config);
  asm volatile("" ::"m"(config) : "memory");
}

void amx_begin(int rows) { load_config(rows); }
void amx_end() { _tile_release(); }

// Tile `i` of C: gives way to the block before, then starts.
#define WICK_AMX_START(i)                                           \
  if (b.before != nullptr) _tile_stored(i, b.before + 256 * i, 64); \
  if (b.first)                                                      \
    _tile_zero(i);                                                  \
  else                                                              \
    _tile_loadd(i, b.c + 256 * i, 64);

void amx_store(float* c) {
  _tile_stored(0, c, 64);
  _tile_stored(1, c + 256, 64);
  _tile_stored(2, c + 512, 64);
  _tile_stored(3, c + 768, 64);
  memory_fence();
}

#define WICK_AMX_GO_ON(i)

// One step of the sum. A tile of A or B is loaded as soon as its last product is on its way, two
// products before its next: where the unit is held back for its current, loads and products take
// turns, and this order makes neither wait for the other. A passes by once for each panel of B and
// is kept out of the first cache, where B's first steps stay (docs/decisions/046).
#define WICK_AMX_STEP(start, more, load_b)                                               \
  _tile_stream_loadd(5, a + 16 * b.a_stride, b.a_stride);                                \
  start(0) _tile_dpbf16ps(0, 4, 6);                                                      \
  load_b(7, at + 1024, 64);                                                              \
  start(2) _tile_dpbf16ps(2, 5, 6);                                                      \
  a += b.a_step;                                                                         \
  at += b.b_step;                                                                        \
  if (more) load_b(6, at, 64);                                                           \
  start(1) _tile_dpbf16ps(1, 4, 7);                                                      \
  if (more) _tile_stream_loadd(4, a, b.a_stride);                                        \
  start(3) _tile_dpbf16ps(3, 5, 7);                                                      \
  for (int64_t i = 0; i < b.ahead_lines; ++i) _mm_prefetch(ahead + i * 64, _MM_HINT_T1); \
  ahead += b.ahead_step;

constexpr int64_t kStayingSteps = 18;  // of B in the first cache

void two_tiles(const Block& b) {
  const char *a = b.a, *at = b.b, *ahead = b.ahead;
  const int64_t last = b.steps - 1;
  _tile_stream_loadd(4, a, b.a_stride);
  _tile_loadd(6, at, 64);
  WICK_AMX_STEP(WICK_AMX_START, last > 0, _tile_loadd)
  const int64_t busy = std::min(last, b.pieces), staying = std::min(last, kStayingSteps);
  int64_t s = 1;
  for (; s < busy; ++s) {
    WICK_AMX_STEP(WICK_AMX_GO_ON, true, _tile_loadd)
    b.meanwhile(b.context, s - 1);
  }
  for (; s < staying; ++s) {
    WICK_AMX_STEP(WICK_AMX_GO_ON, true, _tile_loadd)
  }
  for (; s < last; ++s) {
    WICK_AMX_STEP(WICK_AMX_GO_ON, true, _tile_stream_loadd)
  }
  if (last == 0) return;
  WICK_AMX_STEP(WICK_AMX_GO_ON, false, _tile_stream_loadd)
  if (busy > 0) b.meanwhile(b.context, busy - 1);
}

// The same where A is in three parts: two tiles of B serve twelve products.
#define WICK_AMX_STEP_OF_PARTS(start, more)                                              \
  _tile_loadd(5, a + 1024, 64);                                                          \
  start(0) _tile_dpbf16ps(0, 4, 6);                                                      \
  _tile_loadd(7, at + 1024, 64);                                                         \
  start(2) _tile_dpbf16ps(2, 5, 6);                                                      \
  start(1) _tile_dpbf16ps(1, 4, 7);                                                      \
  _tile_loadd(4, a + kBlockBytes, 64);                                                   \
  start(3) _tile_dpbf16ps(3, 5, 7);                                                      \
  _tile_loadd(5, a + kBlockBytes + 1024, 64);                                            \
  _tile_dpbf16ps(0, 4, 6);                                                               \
  _tile_dpbf16ps(1, 4, 7);                                                               \
  _tile_loadd(4, a + 2 * kBlockBytes, 64);                                               \
  _tile_dpbf16ps(2, 5, 6);                                                               \
  _tile_dpbf16ps(3, 5, 7);                                                               \
  _tile_loadd(5, a + 2 * kBlockBytes + 1024, 64);                                        \
  a += b.a_step;                                                                         \
  at += b.b_step;                                                                        \
  _tile_dpbf16ps(0, 4, 6);                                                               \
  _tile_dpbf16ps(2, 5, 6);                                                               \
  if (more) _tile_loadd(6, at, 64);                                                      \
  _tile_dpbf16ps(1, 4, 7);                                                               \
  if (more) _tile_loadd(4, a, 64);                                                       \
  _tile_dpbf16ps(3, 5, 7);                                                               \
  for (int64_t i = 0; i < b.ahead_lines; ++i) _mm_prefetch(ahead + i * 64, _MM_HINT_T1); \
  ahead += b.ahead_step;

void two_tiles_of_parts(const Block& b) {
  const char *a = b.a, *at = b.b, *ahead = b.ahead;
  const int64_t last = b.steps - 1;
  _tile_loadd(4, a, 64);
  _tile_loadd(6, at, 64);
  WICK_AMX_STEP_OF_PARTS(WICK_AMX_START, last > 0)
  for (int64_t s = 1; s < last; ++s) {
    WICK_AMX_STEP_OF_PARTS(WICK_AMX_GO_ON, true)
    if (s <= b.pieces) b.meanwhile(b.context, s - 1);
  }
  if (last == 0) return;
  WICK_AMX_STEP_OF_PARTS(WICK_AMX_GO_ON, false)
  if (last <= b.pieces) b.meanwhile(b.context, last - 1);
}

void one_tile(const Block& b) {
  const char *a = b.a, *at = b.b, *ahead = b.ahead;
  float* c = b.c;
  if (b.first) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_loadd(0, c, 64);
    _tile_loadd(1, c + 256, 64);
  }
  for (int64_t s = 0; s < b.steps; ++s) {
    _tile_loadd(4, a, b.a_stride);
    _tile_loadd(6, at, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, at + 1024, 64);
    _tile_dpbf16ps(1, 4, 7);
    for (int part = 1; part < b.parts; ++part) {
      _tile_loadd(4, a + part * kBlockBytes, b.a_stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    a += b.a_step;
    at += b.b_step;
    for (int64_t i = 0; i < b.ahead_lines; ++i) _mm_prefetch(ahead + i * 64, _MM_HINT_T0);
    ahead += b.ahead_step;
  }
  _tile_stored(0, c, 64);
  _tile_stored(1, c + 256, 64);
}

void amx_block(const Block& b) {
  memory_fence();
  if (b.a_tiles == 1)
    one_tile(b);
  else if (b.parts == 1)
    two_tiles(b);
  else
    two_tiles_of_parts(b);
  memory_fence();
}

// In the child: whether 16 x 32 by 32 x 16 comes out right.
bool trial_product() {
  alignas(64) bf16 a[2][16][32], b[2][16][32];
  alignas(64) float c[4][16][16];
  auto small = [](int i, int j) { return static_cast<float>((i * 7 + j * 3) % 11 - 5); };
  for (int t = 0; t < 2; ++t)
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 32; ++j) {
        a[t][i][j] = to_bf16(small(16 * t + i, j));
        b[t][j / 2][2 * i + j % 2] = to_bf16(small(j, 16 * t + i));
      }
  amx_begin(16);
  Block block;
  block.a = reinterpret_cast<const char*>(a);
  block.b = reinterpret_cast<const char*>(b);
  block.c = &c[0][0][0];
  block.steps = 1;
  amx_block(block);
  amx_store(block.c);
  amx_end();
  for (int m = 0; m < 32; ++m)
    for (int n = 0; n < 32; ++n) {
      float sum = 0;
      for (int k = 0; k < 32; ++k) sum += small(m, k) * small(k, n);
      if (c[m / 16 * 2 + n / 16][m % 16][n % 16] != sum) return false;
    }
  return true;
}

}  // namespace

// Pieces of 14 steps of w stay in the first cache, and up to 30 in it and the second; what is made
// leaves room for the next panel's.
const Unit kAmxUnit = {.begin = amx_begin,
                       .end = amx_end,
                       .block = amx_block,
                       .store = amx_store,
                       .in_order = false,
                       .plain = {30, 14},
                       .made = {14, 14},
                       .parts = {32, 16},
                       .far_w = 12 << 20,
                       .far_y = 4 << 20};

}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {
namespace {

uint64_t enabled_states() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

struct Features {
  bool avx512_bf16 = false, amx = false, amx_enabled = false;
  Features() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1u << 27))) return;  // OSXSAVE
    const uint64_t states = enabled_states();
    if ((states & 0xe6) != 0xe6) return;  // vectors of 512 bits
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    const unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    if ((b & kAvx512) != kAvx512 || !(c & (1u << 11))) return;           // VNNI
    amx = (d & (1u << 22)) && (d & (1u << 24)) && (d & (1u << 25));      // bf16, tile, int8
    amx_enabled = (states & (3u << 17)) == (3u << 17);
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) avx512_bf16 = (a & (1u << 5)) != 0;
  }
};

std::string find_amx_problem() {
  const Features found;
  if (!found.avx512_bf16) return "the processor has no AVX-512 BF16";
  if (!found.amx) return "the processor has no AMX";
  if (!found.amx_enabled) return "the system does not enable AMX's registers";
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0)
    return "the system refuses the permission to use AMX";
  const pid_t child = fork();
  if (child < 0) return "AMX could not be tried: no child process";
  if (child == 0) {
    // Neither a handler of this process nor a core dump, nor for long.
    for (int number : {SIGILL, SIGSEGV, SIGBUS, SIGALRM}) signal(number, SIG_DFL);
    alarm(10);
    prctl(PR_SET_DUMPABLE, 0);
    _exit(trial_product() ? 0 : 1);
  }
  int status = 0;
  pid_t got;
  while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  if (got != child) return "AMX could not be tried: the child process was lost";
  if (WIFSIGNALED(status))
    return cat("the processor names AMX but a trial died of signal ", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "the processor names AMX but a trial gave wrong numbers";
  return "";
}

}  // namespace

const std::string& amx_problem() {
  static const std::string problem = find_amx_problem();
  return problem;
}

bool avx512_bf16_works() {
  static const bool works = Features().avx512_bf16;
  return works;
}

}  // namespace wick::cpu

#else

namespace wick::cpu {

const std::string& amx_problem() {
  static const std::string problem = "this binary has no code for AMX";
  return problem;
}
bool avx512_bf16_works() { return false; }

}  // namespace wick::cpu

#endif
