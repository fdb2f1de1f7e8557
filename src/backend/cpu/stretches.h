// SPDX-License-Identifier: Apache-2.0
// How products share out their work. With few rows a matrix passes by once: each thread reads a
// stretch of memory of its own in order, so that what is brought near ahead of its use is its own,
// and then helps the others with theirs. With many rows it is the rows that a thread stays with.
#pragma once

#include <algorithm>
#include <atomic>

#include "base/check.h"
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

// Calls f(group, task, worker) for every task of every group. A thread stays with a group, whose
// tasks read the same rows, as long as there is work in it. At most 16 groups.
template <typename F>
void in_groups(ThreadPool& pool, int64_t groups, int64_t tasks, const F& f) {
  constexpr int kMost = 16;
  WICK_DCHECK(groups <= kMost);
  struct alignas(64) Turn {
    std::atomic<int64_t> next{0};
  };
  Turn turns[kMost];
  pool.parallel(std::min<int64_t>(pool.threads(), groups * tasks), [&](int64_t, int worker) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t group = (worker + g) % groups;
      for (int64_t task; (task = turns[group].next.fetch_add(1)) < tasks;) f(group, task, worker);
    }
  });
}

}  // namespace wick::cpu
