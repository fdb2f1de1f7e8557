// SPDX-License-Identifier: Apache-2.0
// What an adapter does to the weights that it is merged into.
#include <algorithm>
#include <cmath>

#include "adapter/lora.h"
#include "base/threads.h"

namespace wick {

namespace {

// w [rows, cols] += scale * left right, left [rows, rank], right [rank, cols]. A sum's terms come
// in the order of ranks; four of them at a time, so that it is not read and written for each.
void add_product(float* w, int64_t rows, int64_t cols, const float* left, const float* right,
                 int64_t rank, float scale, ThreadPool& pool) {
  constexpr int64_t kRows = 16, kColumns = 512;  // of a task; of `right`, while in the caches
  pool.parallel((rows + kRows - 1) / kRows, [&](int64_t task) {
    float sums[kColumns];
    for (int64_t c = 0; c < cols; c += kColumns) {
      const int64_t n = std::min(kColumns, cols - c);
      for (int64_t o = task * kRows; o < std::min(rows, (task + 1) * kRows); ++o) {
        std::fill_n(sums, n, 0.0f);
        int64_t r = 0;
        for (; r + 4 <= rank; r += 4) {
          const float *factors = left + o * rank + r, *from = right + r * cols + c;
          for (int64_t i = 0; i < n; ++i)
            sums[i] = (((sums[i] + factors[0] * from[i]) + factors[1] * from[cols + i]) +
                       factors[2] * from[2 * cols + i]) +
                      factors[3] * from[3 * cols + i];
        }
        for (; r < rank; ++r) {
          const float factor = left[o * rank + r], *from = right + r * cols + c;
          for (int64_t i = 0; i < n; ++i) sums[i] += factor * from[i];
        }
        float* to = w + o * cols + c;
        for (int64_t i = 0; i < n; ++i) to[i] += scale * sums[i];
      }
    }
  });
}

// Each row of w [out, in] to the length m.
void set_lengths(float* w, int64_t out, int64_t in, const float* m, ThreadPool& pool) {
  pool.parallel(out, [&](int64_t o) {
    double square = 0;
    for (int64_t i = 0; i < in; ++i)
      square += static_cast<double>(w[o * in + i]) * static_cast<double>(w[o * in + i]);
    const float factor = static_cast<float>(static_cast<double>(m[o]) / std::sqrt(square));
    for (int64_t i = 0; i < in; ++i) w[o * in + i] *= factor;
  });
}

}  // namespace

void Adapter::merge_tokens(std::span<const float> params, float* table) const {
  const TokenRows& t = *tokens_;
  for (int64_t k = 0; k < t.count(); ++k)
    for (int64_t d = 0; d < t.hidden; ++d)
      table[t.ids[static_cast<size_t>(k)] * t.hidden + d] =
          params[static_cast<size_t>(t.offset + d * t.count() + k)];
}

void Adapter::merge(const LoraModule& m, std::span<const float> params, float* w,
                    ThreadPool& pool) const {
  const float *a = params.data() + m.a_offset, *b = params.data() + m.b_offset;
  if (m.kind == ModuleKind::kEmbedding) {
    std::vector<float> turned(static_cast<size_t>(m.rank * m.out));  // B as [rank, out]
    for (int64_t o = 0; o < m.out; ++o)
      for (int64_t r = 0; r < m.rank; ++r)
        turned[static_cast<size_t>(r * m.out + o)] = b[o * m.rank + r];
    return add_product(w, m.in, m.out, a, turned.data(), m.rank, m.scale, pool);
  }
  add_product(w, m.out, m.in, b, a, m.rank, m.scale, pool);
  if (m.a0_offset >= 0)
    add_product(w, m.out, m.in, frozen_.data() + m.b0_offset, frozen_.data() + m.a0_offset, m.rank,
                -m.scale, pool);
  if (m.m_offset >= 0) set_lengths(w, m.out, m.in, params.data() + m.m_offset, pool);
}

}  // namespace wick
