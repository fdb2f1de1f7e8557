// SPDX-License-Identifier: Apache-2.0
// Quantised rows (quant/rows.h) in registers.

#if defined(WICK_CPU_QUANT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WICK_CPU_QUANT_INL_H_
#undef WICK_CPU_QUANT_INL_H_
#else
#define WICK_CPU_QUANT_INL_H_
#endif

#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {

// A matrix of quantised rows, with what its inner loops need at hand.
struct QuantRows {
  const uint8_t* data;
  int64_t cols, stride, code_bytes, group;
  int bits;

  QuantRows(const void* rows, DType dtype, int64_t columns)
      : data(static_cast<const uint8_t*>(rows)),
        cols(columns),
        stride(static_cast<int64_t>(row_bytes(dtype, columns))),
        code_bytes(static_cast<int64_t>(quant_code_bytes(dtype, columns))),
        group(quant_group(dtype)),
        bits(quant_bits(dtype)) {}

  const uint8_t* row(int64_t r) const { return data + r * stride; }
  // Codes lie before every scale, so that the two bytes before one are the row's own: loaded with
  // them, a bf16 is the upper half of a float whose lower half is cleared.
  VF scale(const uint8_t* row, int64_t g) const {
    uint32_t bits32;
    std::memcpy(&bits32, row + code_bytes + g * 2 - 2, sizeof bits32);
    const hn::RebindToUnsigned<DF> du;
    return hn::BitCast(df, hn::And(hn::Set(du, bits32), hn::Set(du, 0xffff0000u)));
  }
};

// Codes [i, i + kLanes) of a block of 32 as floats. i is a multiple of kLanes.
template <int Bits>
HWY_INLINE VF block_codes(const uint8_t* block, int64_t i) {
  const hn::RebindToSigned<DF> di;
  if constexpr (Bits == 8) {
    const hn::Rebind<int8_t, DF> d8;
    return hn::ConvertTo(
        df, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(block) + i)));
  } else {
    const hn::Rebind<uint8_t, DF> d8;
    auto both = hn::PromoteTo(di, hn::LoadU(d8, block + i % 16));
    if (i >= 16) both = hn::ShiftRight<4>(both);
#if HWY_TARGET == HWY_AVX3
    // One lookup by the low four bits is the mask, the shift by 8 and the conversion.
    const __m512 values = _mm512_set_ps(7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8);
    return VF{_mm512_permutexvar_ps(both.raw, values)};
#else
    return hn::ConvertTo(df, hn::Sub(hn::And(both, hn::Set(di, 15)), hn::Set(di, 8)));
#endif
  }
}

template <int Bits>
HWY_INLINE void unpack_block(const uint8_t* block, VF scale, float* HWY_RESTRICT to) {
  WICK_UNROLL
  for (int64_t i = 0; i < kQuantBlock; i += kLanes)
    store(hn::Mul(block_codes<Bits>(block, i), scale), to + i);
}

// Elements [c, c + n) of a row.
inline void dequantize(const QuantRows& w, int64_t row, int64_t c, int64_t n,
                       float* HWY_RESTRICT to) {
  const uint8_t* from = w.row(row);
  const int64_t block_bytes = w.bits * kQuantBlock / 8;
  alignas(64) float beside[kQuantBlock];
  for (int64_t end = c + n; c < end;) {
    const int64_t first = c / kQuantBlock * kQuantBlock;
    const int64_t count = std::min(end, first + kQuantBlock) - c;
    float* out = count == kQuantBlock ? to : beside;
    const uint8_t* block = from + first / kQuantBlock * block_bytes;
    const VF scale = w.scale(from, c / w.group);
    if (w.bits == 8)
      unpack_block<8>(block, scale, out);
    else
      unpack_block<4>(block, scale, out);
    if (out == beside)
      std::memcpy(to, beside + (c - first), static_cast<size_t>(count) * sizeof(float));
    c += count;
    to += count;
  }
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
