// SPDX-License-Identifier: Apache-2.0
// How products with few rows share out a matrix that passes by once: each thread reads a stretch of
// memory of its own in order, so that what is brought near ahead of its use is its own, and then
// helps the others with theirs.
#pragma once

#include <algorithm>
#include <atomic>

#include "base/threads.h"

namespace wick::cpu {

// Calls work(next) on each thread; next() gives the next of the tasks [0, n) to do, then -1. Every
// task is given once.
template <typename Work>
void in_stretches(ThreadPool& pool, int64_t n, const Work& work) {
  struct alignas(64) Stretch {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  constexpr int kMost = 32;
  Stretch stretches[kMost];
  const int count = static_cast<int>(std::clamp<int64_t>(n, 1, std::min(kMost, pool.threads())));
  for (int s = 0; s < count; ++s) {
    stretches[s].next.store(n * s / count, std::memory_order_relaxed);
    stretches[s].end = n * (s + 1) / count;
  }
  pool.parallel(count, [&](int64_t, int worker) {
    int seen = 0;
    work([&]() -> int64_t {
      for (; seen < count; ++seen) {
        Stretch& s = stretches[(worker + seen) % count];
        const int64_t i = s.next.fetch_add(1, std::memory_order_relaxed);
        if (i < s.end) return i;
      }
      return -1;
    });
  });
}

}  // namespace wick::cpu
