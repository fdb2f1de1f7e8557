// SPDX-License-Identifier: Apache-2.0
// weigh() of draw.h for each width of vectors: exp_negative() is written so that its loop becomes
// vectors, and gives the same bits in all of them. Bound by arithmetic.
#include "backend/cpu/rungs.h"
#include "backend/draw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/weigh.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {

void weigh_all(const float* logits, size_t count, float most, float by, float* weights) {
  for (size_t i = 0; i < count; ++i) weights[i] = exp_negative((logits[i] - most) * by);
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {
namespace cpu {
namespace {

using WeighFn = void (*)(const float*, size_t, float, float, float*);

WeighFn best_weigh() {
  constexpr WeighFn kTable[kRungCount] = {HWY_CHOOSE_AVX3(weigh_all),    HWY_CHOOSE_AVX3(weigh_all),
                                          HWY_CHOOSE_AVX3(weigh_all),    HWY_CHOOSE_AVX2(weigh_all),
                                          HWY_CHOOSE_SSE4(weigh_all),    HWY_CHOOSE_NEON(weigh_all),
                                          HWY_CHOOSE_FALLBACK(weigh_all)};
  for (int i = static_cast<int>(Rung::kAvx512); i < kRungCount; ++i)
    if (rung_works(static_cast<Rung>(i))) return kTable[i];
  return kTable[kRungCount - 1];
}

}  // namespace
}  // namespace cpu

void weigh(std::span<const float> logits, float most, float by, float* weights) {
  static const cpu::WeighFn kBest = cpu::best_weigh();
  kBest(logits.data(), logits.size(), most, by, weights);
}

}  // namespace wick
#endif
