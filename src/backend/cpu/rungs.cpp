// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/rungs.h"

#include <hwy/targets.h>

#include "backend/cpu/amx.h"

namespace wick::cpu {

const char* rung_name(Rung rung) {
  constexpr const char* kNames[kRungCount] = {"amx",  "avx512_bf16", "avx512", "avx2",
                                              "sse4", "neon",        "scalar"};
  return kNames[static_cast<int>(rung)];
}

bool amx_works() { return amx_problem().empty(); }

bool rung_works(Rung rung) {
  constexpr int64_t kBits[kRungCount] = {HWY_AVX3, HWY_AVX3, HWY_AVX3, HWY_AVX2,
                                         HWY_SSE4, HWY_NEON, 0};
  if (rung == Rung::kAmx && !amx_works()) return false;
  if (rung == Rung::kAvx512Bf16 && !avx512_bf16_works()) return false;
  // The last entry of every table is the baseline, which on some machines is one of the others.
  if (rung == Rung::kScalar) return (HWY_TARGETS & (HWY_EMU128 | HWY_SCALAR)) != 0;
  return (kBits[static_cast<int>(rung)] & HWY_TARGETS & hwy::SupportedTargets()) != 0;
}

}  // namespace wick::cpu
