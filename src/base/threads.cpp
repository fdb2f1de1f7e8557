// SPDX-License-Identifier: Apache-2.0
#include "base/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"

namespace wick {

namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// About 50 microseconds of spinning: longer than the gap between two steps of a program, short
// enough that a pool left idle costs nothing.
constexpr int kSpins = 4000;

}  // namespace

// A call is open to workers until its caller finds nothing left to take, and waits for those that
// came in alone: one that the system has not woken, or not run, by then misses nothing, and nobody
// waits for it. All of that is one word, so that nobody comes in to a call that has ended: which
// call it is, whether it is open, and how many workers are inside.
struct ThreadPool::Shared {
  static constexpr uint64_t kOpen = uint64_t{1} << 32, kCall = kOpen << 1, kInside = kOpen - 1;

  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> gate{0};
  std::atomic<int64_t> next{0};
  std::atomic<int> sleeping{0};
  std::atomic<bool> stop{false};
  Task task = nullptr;
  void* context = nullptr;
  int64_t count = 0;

  uint64_t call() const { return gate.load(std::memory_order_acquire) / kCall; }

  void drain(int worker) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;)
      task(context, i, worker);
  }

  // Whether the worker is inside of call `wanted`.
  bool enter(uint64_t wanted) {
    uint64_t now = gate.load(std::memory_order_relaxed);
    while (now / kCall == wanted && (now & kOpen) != 0)
      if (gate.compare_exchange_weak(now, now + 1, std::memory_order_acquire,
                                     std::memory_order_relaxed))
        return true;
    return false;
  }

  void serve(int worker) {
    uint64_t seen = 0;
    for (;;) {
      int spins = 0;
      while (call() == seen && !stop.load()) {
        if (++spins < kSpins) {
          relax();
          continue;
        }
        std::unique_lock<std::mutex> lock(mutex);
        sleeping.fetch_add(1);
        wake.wait(lock, [&] { return gate.load() / kCall != seen || stop.load(); });
        sleeping.fetch_sub(1);
      }
      if (stop.load()) return;
      seen = call();
      if (!enter(seen)) continue;
      drain(worker);
      gate.fetch_sub(1, std::memory_order_release);
    }
  }

  void end() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      stop.store(true);
    }
    wake.notify_all();
    for (std::thread& t : workers) t.join();
  }
};

ThreadPool::ThreadPool(int threads)
    : threads_(threads > 0 ? threads : usable_cpus()), shared_(std::make_unique<Shared>()) {
  try {
    for (int i = 1; i < threads_; ++i)
      shared_->workers.emplace_back([shared = shared_.get(), i] { shared->serve(i); });
  } catch (const std::system_error& error) {
    const size_t got = shared_->workers.size() + 1;
    shared_->end();
    fail(ErrorCode::kOutOfMemory, "the system gives ", got, " of ", threads_, " threads (",
         error.code().message(), "); ask for fewer, or raise the limits (ulimit -u, ulimit -v)");
  }
}

ThreadPool::~ThreadPool() { shared_->end(); }

void ThreadPool::run(int64_t n, Task task, void* context) {
  if (n <= 0) return;
  Shared& s = *shared_;
  if (n == 1 || threads_ == 1) {
    for (int64_t i = 0; i < n; ++i) task(context, i, 0);
    return;
  }
  s.task = task;
  s.context = context;
  s.count = n;
  s.next.store(0, std::memory_order_relaxed);
  s.gate.store((s.call() + 1) * Shared::kCall | Shared::kOpen);
  if (s.sleeping.load() > 0) {
    // Taking the lock orders this wake-up after a worker's last look at the gate.
    { std::lock_guard<std::mutex> lock(s.mutex); }
    s.wake.notify_all();
  }
  s.drain(0);
  s.gate.fetch_and(~Shared::kOpen, std::memory_order_relaxed);
  // A worker that is inside may have lost its processor to somebody else, or to this thread.
  for (int spins = 0; (s.gate.load(std::memory_order_acquire) & Shared::kInside) != 0; ++spins) {
    if (spins < kSpins)
      relax();
    else
      std::this_thread::yield();
  }
}

int usable_cpus() {
  int cpus = std::max(1u, std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = std::max(1, CPU_COUNT(&set));
  // A container limited to two CPUs on a large host sees the host's count above.
  std::ifstream quota("/sys/fs/cgroup/cpu.max");
  double limit = 0, period = 0;
  if (quota >> limit >> period && limit > 0 && period > 0)
    cpus = std::min(cpus, std::max(1, static_cast<int>(limit / period + 0.5)));
#endif
  return cpus;
}

}  // namespace wick
