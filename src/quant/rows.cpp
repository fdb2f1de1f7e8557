// SPDX-License-Identifier: Apache-2.0
#include "quant/rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"

namespace wick {
namespace {

constexpr int64_t kMostGroup = 128;
constexpr float kTiny = 1e-30f;  // below it the inverse of a scale would overflow
constexpr float kHuge = 1e18f;   // above it squares would

// Four lanes are what every machine has; the compiler's own vectors keep sums in one order.
using V4 = float __attribute__((vector_size(16)));
using I4 = int32_t __attribute__((vector_size(16)));

V4 all(float x) { return V4{x, x, x, x}; }
V4 load(const float* p) {
  V4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
float sum(V4 v) { return (v[0] + v[1]) + (v[2] + v[3]); }

// To the nearest integer, ties to even, for |x| < 2^22.
V4 round_v(V4 x) {
  const V4 shift = all(12582912.0f);
  return (x + shift) - shift;
}
V4 code_v(V4 x, V4 inverse, V4 low, V4 high) {
  V4 q = x * inverse;
  q = q < low ? low : q;
  q = q > high ? high : q;
  return round_v(q);
}

struct Range {
  float low, high;
};
constexpr Range kRange8{-127, 127}, kRange4{-8, 7};

// The nearest bf16, or the one below where the group's largest value would overflow.
float to_scale(float x, Range r) {
  bf16 s = to_bf16(x);
  if (!std::isfinite(to_float(s) * r.low)) --s.bits;
  return to_float(s);
}

// A group, padded with zeros to whole vectors.
struct Group {
  alignas(16) std::array<float, kMostGroup> x;
  int64_t padded = 0;
  float most = 0;  // the element with the largest magnitude, with its sign

  void read(const float* from, int64_t n) {
    padded = (n + 3) / 4 * 4;
    std::copy_n(from, n, x.begin());
    std::fill(x.begin() + n, x.begin() + padded, 0.0f);
    V4 high = all(0), low = all(0);
    for (int64_t i = 0; i < padded; i += 4) {
      V4 v = load(x.data() + i);
      high = v > high ? v : high;
      low = v < low ? v : low;
    }
    float highest = std::max({high[0], high[1], high[2], high[3]});
    float lowest = std::min({low[0], low[1], low[2], low[3]});
    most = -lowest > highest ? lowest : highest;
  }
};

struct Fit {
  float scale = 0, inverse = 0;  // codes are made with the inverse, values with the scale
  float error = 0;               // squared, less the group's own sum of squares
};

bool is_exact(const Group& g, float scale, Range r) {
  const V4 s = all(scale), inverse = all(1.0f / scale), low = all(r.low), high = all(r.high);
  for (int64_t i = 0; i < g.padded; i += 4) {
    V4 x = load(g.x.data() + i);
    I4 differs = code_v(x, inverse, low, high) * s != x;
    if (differs[0] | differs[1] | differs[2] | differs[3]) return false;
  }
  return true;
}

// The codes of an inverse scale, and the scale that fits them best.
Fit fit(const Group& g, float inverse, Range r) {
  const V4 by = all(inverse), low = all(r.low), high = all(r.high);
  V4 xq = all(0), qq = all(0);
  for (int64_t i = 0; i < g.padded; i += 4) {
    V4 x = load(g.x.data() + i), q = code_v(x, by, low, high);
    xq += x * q;
    qq += q * q;
  }
  Fit f;
  f.inverse = inverse;
  f.scale = to_scale(sum(xq) / sum(qq), r);
  f.error = f.scale * (f.scale * sum(qq) - 2.0f * sum(xq));
  return f;
}

Fit fit_8(const Group& g) {
  float scale = to_scale(std::abs(g.most) / 127.0f, kRange8);
  return {scale, 1.0f / scale, 0};
}

// -8 or -7 for the largest element, and a few ranges between and beyond, in which it is cut short
// so that the others gain.
Fit fit_4(const Group& g) {
  for (float level : {-8.0f, -7.0f})
    if (float scale = to_scale(g.most / level, kRange4); is_exact(g, scale, kRange4))
      return {scale, 1.0f / scale, 0};
  if (std::abs(g.most) > kHuge) {
    const float scale = to_scale(g.most / -8.0f, kRange4);
    return {scale, 1.0f / scale, 0};
  }
  Fit best = fit(g, -8.0f / g.most, kRange4);
  for (float level : {-7.0f, -7.3f, -7.6f, -8.4f, -8.8f, -9.2f})
    if (Fit f = fit(g, level / g.most, kRange4); f.error < best.error) best = f;
  return best;
}

void put_scale(std::byte* at, float scale) {
  bf16 stored = to_bf16(scale);
  std::memcpy(at, &stored, sizeof stored);
}

}  // namespace

void quantize_row(DType dtype, const float* x, int64_t cols, std::byte* row) {
  WICK_CHECK(dtype_is_quantized(dtype), dtype_name(dtype));
  const bool eight = quant_bits(dtype) == 8;
  const int64_t group = quant_group(dtype);
  const Range range = eight ? kRange8 : kRange4;
  std::memset(row, eight ? 0 : 0x88, quant_code_bytes(dtype, cols));
  std::byte* scale = row + quant_code_bytes(dtype, cols);
  Group g;
  for (int64_t c0 = 0; c0 < cols; c0 += group, scale += 2) {
    const int64_t n = std::min(group, cols - c0);
    g.read(x + c0, n);
    if (!(std::abs(g.most) >= kTiny)) {
      put_scale(scale, 0);
      continue;
    }
    const Fit f = eight ? fit_8(g) : fit_4(g);
    put_scale(scale, f.scale);
    const V4 inverse = all(f.inverse), low = all(range.low), high = all(range.high);
    alignas(16) std::array<int32_t, kMostGroup> codes;
    for (int64_t i = 0; i < g.padded; i += 4) {
      I4 q = __builtin_convertvector(code_v(load(g.x.data() + i), inverse, low, high), I4);
      std::memcpy(codes.data() + i, &q, sizeof q);
    }
    auto* bytes = reinterpret_cast<uint8_t*>(row);
    if (eight) {
      for (int64_t i = 0; i < n; ++i)
        bytes[c0 + i] = static_cast<uint8_t>(codes[static_cast<size_t>(i)]);
    } else {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t c = c0 + i;
        const auto u = static_cast<unsigned>(codes[static_cast<size_t>(i)] + 8);
        uint8_t& b = bytes[c / 32 * 16 + c % 16];
        b = static_cast<uint8_t>(c % 32 < 16 ? (b & 0xf0u) | u : (b & 0x0fu) | u << 4);
      }
    }
  }
}

int quant_code(DType dtype, const std::byte* row, int64_t col) {
  if (quant_bits(dtype) == 8) return static_cast<int8_t>(row[col]);
  const unsigned both = std::to_integer<unsigned>(row[col / 32 * 16 + col % 16]);
  return static_cast<int>(col % 32 < 16 ? both & 15 : both >> 4) - 8;
}

float quant_scale(DType dtype, const std::byte* row, int64_t cols, int64_t group) {
  bf16 stored;
  std::memcpy(&stored, row + quant_code_bytes(dtype, cols) + group * 2, sizeof stored);
  return to_float(stored);
}

void dequantize_row(DType dtype, const std::byte* row, int64_t cols, float* x) {
  const int64_t group = quant_group(dtype);
  for (int64_t c0 = 0; c0 < cols; c0 += group) {
    const float scale = quant_scale(dtype, row, cols, c0 / group);
    for (int64_t c = c0; c < std::min(cols, c0 + group); ++c)
      x[c] = scale * static_cast<float>(quant_code(dtype, row, c));
  }
}

QuantError quant_error(std::span<const float> values, std::span<const float> restored) {
  WICK_CHECK(values.size() == restored.size(), values.size(), " and ", restored.size());
  QuantError e;
  double wrong = 0, all = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double d = static_cast<double>(restored[i]) - static_cast<double>(values[i]);
    wrong += d * d;
    all += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    e.largest = std::max(e.largest, std::abs(d));
  }
  e.relative = all > 0 ? std::sqrt(wrong / all) : std::sqrt(wrong);
  return e;
}

}  // namespace wick
