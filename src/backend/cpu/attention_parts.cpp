// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/attention_parts.h"

#include <algorithm>

namespace wick::cpu {

int64_t find_parts(const int32_t* begin, int64_t tokens, AttentionPart* parts) {
  int64_t count = 0;
  for (int64_t t0 = 0, t1; t0 < tokens; t0 = t1) {
    for (t1 = t0 + 1; t1 < tokens && begin[t1] < t1;) ++t1;
    const bool lone = t1 - t0 == 1;
    if (lone && count > 0 && parts[count - 1].lone)
      parts[count - 1].stop = static_cast<int32_t>(t1);
    else
      parts[count++] = {static_cast<int32_t>(t0), static_cast<int32_t>(t1), lone};
  }
  std::sort(parts, parts + count, [](const AttentionPart& x, const AttentionPart& y) {
    if (x.lone != y.lone) return y.lone;
    return x.length() != y.length() ? x.length() > y.length() : x.start < y.start;
  });
  return count;
}

bool parts_suffice(const AttentionPart* parts, int64_t count, int64_t kv_heads, int64_t threads,
                   int64_t most_keys) {
  constexpr int64_t kMostThreads = 64;
  threads = std::min(threads, kMostThreads);
  double busy[kMostThreads] = {}, total = 0;
  for (int64_t i = 0; i < count * kv_heads; ++i) {
    const AttentionPart& part = parts[i / kv_heads];
    if (part.lone) break;
    if (part.length() > most_keys) return false;
    const double cost = static_cast<double>(part.length()) * static_cast<double>(part.length());
    *std::min_element(busy, busy + threads) += cost;
    total += cost;
  }
  return *std::max_element(busy, busy + threads) * static_cast<double>(threads) <= 1.4 * total;
}

}  // namespace wick::cpu
