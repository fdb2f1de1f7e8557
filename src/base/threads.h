// SPDX-License-Identifier: Apache-2.0
// ThreadPool: the one pool of a process, owned by the Engine and passed in, never global.
//
// parallel(n, f) calls f(i), or f(i, worker) where f takes two, once for each i in [0, n) and
// returns when all are done. `worker` in [0, threads()) names the calling thread's own scratch.
// Which thread takes which i is not fixed, so a kernel keeps its results independent of the thread
// count by making each i own its output and by fixing every sum's order inside one i. A worker that
// comes too late for a call is not waited for. Workers spin briefly between calls, then sleep. Not
// re-entrant: f must not call parallel().
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace wick {

class ThreadPool {
 public:
  // `threads` counts the calling thread; 0 means all that this process may run on.
  // Throws: kOutOfMemory where the system does not give so many.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Requires: f does not throw.
  template <typename F>
  void parallel(int64_t n, F&& f) {
    using Fn = std::remove_reference_t<F>;
    Task task = [](void* context, int64_t i, int worker) {
      if constexpr (std::is_invocable_v<Fn&, int64_t, int>)
        (*static_cast<Fn*>(context))(i, worker);
      else
        (*static_cast<Fn*>(context))(i);
    };
    run(n, task, const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Task = void (*)(void*, int64_t, int);
  void run(int64_t n, Task task, void* context);

  struct Shared;
  int threads_;
  std::unique_ptr<Shared> shared_;
};

// CPUs that this process may be scheduled on (its affinity mask and cgroup quota).
int usable_cpus();

}  // namespace wick
