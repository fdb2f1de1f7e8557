// SPDX-License-Identifier: Apache-2.0
// The instruction sets that the cpu back end is compiled for, and each file's kernels for one.
//
// Every kernel file is compiled once per rung (Highway's foreach_target); the back end picks its
// rung when it is made and keeps plain function pointers. Nothing global is switched.
#pragma once

// Before any Highway header: the rungs between these bring nothing that kernels in f32 would use.
// Instrumented builds leave out the widest, whose many tile shapes take most of their time.
#ifdef WICK_FEW_RUNGS
#define WICK_LEFT_OUT_RUNGS (HWY_AVX3 | HWY_SSE4)
#else
#define WICK_LEFT_OUT_RUNGS 0
#endif
#define HWY_DISABLED_TARGETS                                                             \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | \
   HWY_WASM | HWY_WASM_EMU256 | HWY_PPC8 | WICK_LEFT_OUT_RUNGS)

#include <span>

#include "backend/kernels.h"

namespace wick::cpu {

// The best first. The first two run the AVX-512 source, and kernels of their own before it.
enum class Rung : int { kAmx, kAvx512Bf16, kAvx512, kAvx2, kSse4, kNeon, kScalar };
constexpr int kRungCount = 7;
// Whether a rung multiplies in bf16, and so keeps frozen matrices in tiles.
constexpr bool rung_has_bf16(Rung rung) { return rung <= Rung::kAvx512Bf16; }
const char* rung_name(Rung rung);
// Whether this binary has code for a rung and this machine can run it.
bool rung_works(Rung rung);
bool amx_works();
bool avx512_bf16_works();

using Candidates = std::span<const Candidate>;
// Of the rungs with bf16 units; empty for the others, and in a binary for another architecture.
Candidates tile_candidates(Rung rung);
Candidates bf16_act_candidates(Rung rung);
Candidates linear_candidates(Rung rung);
Candidates quant_linear_candidates(Rung rung);
Candidates norm_candidates(Rung rung);
Candidates elementwise_candidates(Rung rung);
Candidates row_candidates(Rung rung);
Candidates column_candidates(Rung rung);
Candidates attention_fwd_candidates(Rung rung);
Candidates attention_bwd_candidates(Rung rung);
Candidates head_candidates(Rung rung);
Candidates kl_head_candidates(Rung rung);
Candidates preference_candidates(Rung rung);
Candidates optimizer_candidates(Rung rung);

// Multiplications and additions that one thread finishes in `rounds` rounds of the peak loop.
double peak_loop(Rung rung, int64_t rounds);
// The same in bf16. Requires: rung_has_bf16(rung).
double bf16_peak_loop(Rung rung, int64_t rounds);
// Reads `bytes` once; the result is of no use but to the compiler.
uint64_t read_loop(const void* data, size_t bytes);

}  // namespace wick::cpu

// Defines `name(rung)` in wick::cpu from the per-target functions `target_fn`, none of which takes
// an argument. Used after foreach_target, in a file's HWY_ONCE part.
#define WICK_CPU_BY_RUNG(name, target_fn)                                                         \
  Candidates name(Rung rung) {                                                                    \
    using Fn = Candidates (*)();                                                                  \
    constexpr Fn kTable[kRungCount] = {HWY_CHOOSE_AVX3(target_fn),    HWY_CHOOSE_AVX3(target_fn), \
                                       HWY_CHOOSE_AVX3(target_fn),    HWY_CHOOSE_AVX2(target_fn), \
                                       HWY_CHOOSE_SSE4(target_fn),    HWY_CHOOSE_NEON(target_fn), \
                                       HWY_CHOOSE_FALLBACK(target_fn)};                           \
    return kTable[static_cast<int>(rung)]();                                                      \
  }
