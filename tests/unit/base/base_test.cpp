// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/folder_lock.h"
#include "base/half.h"
#include "base/process.h"
#include "base/rng.h"
#include "base/shape.h"
#include "base/threads.h"

namespace wick {
namespace {

TEST(Half, EveryBf16AndF16SurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    bf16 b{static_cast<uint16_t>(bits)};
    f16 h{static_cast<uint16_t>(bits)};
    if (!std::isnan(to_float(b))) {
      EXPECT_EQ(to_bf16(to_float(b)).bits, b.bits);
    }
    if (!std::isnan(to_float(h))) {
      EXPECT_EQ(to_f16(to_float(h)).bits, h.bits);
    }
    EXPECT_EQ(std::isnan(to_float(b)), std::isnan(to_float(to_bf16(to_float(b)))));
    EXPECT_EQ(std::isnan(to_float(h)), std::isnan(to_float(to_f16(to_float(h)))));
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f + 1.0f / 256).bits, 0x3f80);  // a tie goes to the even neighbour
  EXPECT_EQ(to_bf16(1.0f + 3.0f / 256).bits, 0x3f82);
  EXPECT_EQ(to_f16(1.0f + 1.0f / 2048).bits, 0x3c00);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);  // past the largest finite: infinity
  EXPECT_EQ(to_f16(65519.9f).bits, 0x7bff);
  EXPECT_EQ(to_f16(std::ldexp(1.0f, -24)).bits, 1);  // the smallest subnormal
}

TEST(Rng, PhiloxMatchesThePublishedVectors) {
  auto zeros = philox(0, 0, 0);
  EXPECT_EQ(zeros[0], 0x6627e8d5u);
  EXPECT_EQ(zeros[3], 0x9b00dbd8u);
  auto ones = philox(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones[0], 0x408f276du);
}

TEST(ThreadPool, EachIndexOnceForAnyCount) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
      pool.parallel(n, [&](int64_t i) { seen[static_cast<size_t>(i)].fetch_add(1); });
      for (auto& s : seen) EXPECT_EQ(s.load(), 1);
    }
  }
}

TEST(ThreadPool, CallsFollowEachOther) {
  ThreadPool pool(8);
  std::vector<int64_t> made(5);  // plain, so that a sanitizer sees what is not ordered
  for (int64_t call = 0; call < 2000; ++call) {
    const int64_t n = call % 5 + 1;
    pool.parallel(n, [&](int64_t i) { made[static_cast<size_t>(i)] = call + i; });
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(made[static_cast<size_t>(i)], call + i);
  }
}

// Sanitizers map more than such a limit allows, and keep signals back.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ThreadPool, ThreadsThatTheSystemDoesNotGiveAreAnError) {
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  rlimit small = before;
  small.rlim_cur = rlim_t{2} << 30;  // stacks of 8 MiB: some hundred threads
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  // Emulated processes have no such limit.
  const size_t more = size_t{4} << 30;
  void* const given =
      mmap(nullptr, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (given != MAP_FAILED) {
    munmap(given, more);
    setrlimit(RLIMIT_AS, &before);
    GTEST_SKIP() << "a limit of memory changes nothing here";
  }
  std::string message;
  try {
    ThreadPool pool(4096);
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_AS, &before);
  EXPECT_NE(message.find("of 4096 threads"), std::string::npos) << message;
}

std::atomic<int> held{0};  // 1: a thread is in hold(), 2: it may go
void hold(int) {
  held.store(1);
  while (held.load() != 2) {
  }
}

TEST(ThreadPool, AWorkerThatDoesNotRunIsNotWaitedFor) {
  ThreadPool pool(2);
  std::atomic<int> come{0};
  pthread_t worker{};
  pool.parallel(2, [&](int64_t, int who) {
    if (who == 1) worker = pthread_self();
    come.fetch_add(1);
    while (come.load() < 2) {
    }
  });
  struct sigaction holding {};
  holding.sa_handler = hold;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGUSR1, &holding, &before), 0);
  ASSERT_EQ(pthread_kill(worker, SIGUSR1), 0);
  while (held.load() != 1) std::this_thread::yield();
  int64_t sum = 0;
  for (int call = 0; call < 10; ++call) pool.parallel(8, [&](int64_t i) { sum += i; });
  EXPECT_EQ(sum, 10 * 28);
  held.store(2);
  sigaction(SIGUSR1, &before, nullptr);
}
#endif

TEST(File, APipeIsReadToItsEnd) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text(200'000, 'x'), name = cat("/dev/fd/", ends[0]);
  std::thread writer([&] {
    for (size_t at = 0; at < text.size();)
      at += static_cast<size_t>(::write(ends[1], text.data() + at, text.size() - at));
    ::close(ends[1]);
  });
  EXPECT_EQ(read_file(name), text);
  writer.join();
  ::close(ends[0]);
}

TEST(File, AnUncommittedWriteLeavesTheOldFile) {
  auto folder = std::filesystem::temp_directory_path() / cat("wick_file_test", ::getpid());
  make_folder(folder);
  write_file(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("half of the n");
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  int entries = 0;
  for ([[maybe_unused]] auto& e : std::filesystem::directory_iterator(folder)) ++entries;
  EXPECT_EQ(entries, 1);
  EXPECT_THROW(read_file(folder / "a", 2), Error);
  EXPECT_THROW(read_file(folder / "missing"), Error);
  EXPECT_THROW(MappedFile file(folder), Error);
  std::filesystem::remove_all(folder);
}

TEST(File, WhatAKilledWriterLeftIsRemoved) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("wick_left_" + std::to_string(getpid()));
  fs::create_directories(folder);
  // No process has so high a number.
  const fs::path gone = folder / "a.bin.tmp999999999", other = folder / "b.bin.tmp999999999",
                 own = folder / ("a.bin.tmp" + std::to_string(getppid())),
                 named = folder / "a.bin.tmpx1";
  for (const fs::path& each : {gone, other, own, named}) write_file(each, "x");
  write_file(folder / "a.bin", "whole");
  EXPECT_FALSE(fs::exists(gone));
  for (const fs::path& each : {other, own, named}) EXPECT_TRUE(fs::exists(each)) << each;
  EXPECT_EQ(read_file(folder / "a.bin"), "whole");
  fs::remove_all(folder);
}

TEST(NewFolder, GoesAgainUnlessSomethingIsInIt) {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("wick_new_" + std::to_string(getpid()));
  {
    NewFolder unused(root / "a" / "b");
    EXPECT_TRUE(fs::is_directory(root / "a" / "b"));
    unused.keep();
  }
  EXPECT_FALSE(fs::exists(root));
  {
    NewFolder failed(root / "a" / "b");
    write_file(root / "a" / "b" / "half", "x");
  }
  EXPECT_FALSE(fs::exists(root));
  {
    NewFolder done(root / "a" / "b");
    write_file(root / "a" / "b" / "result", "x");
    done.keep();
  }
  EXPECT_TRUE(fs::exists(root / "a" / "b" / "result"));
  {
    NewFolder there(root / "a" / "b");  // somebody else's: nothing of it goes
    write_file(root / "a" / "b" / "half", "x");
  }
  EXPECT_TRUE(fs::exists(root / "a" / "b" / "half"));
  fs::remove_all(root);
}

TEST(FolderLock, IsHeldByOneAndLeavesNothing) {
  auto folder = std::filesystem::temp_directory_path() / cat("wick_lock_test", ::getpid());
  make_folder(folder);
  {
    FolderLock first(folder);
    FolderLock moved(std::move(first));
    EXPECT_THROW(FolderLock second(folder), Error);
  }
  EXPECT_NO_THROW(FolderLock again(folder));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

#ifdef __linux__
TEST(Process, MemoryThatNobodyHasWritten) {
  constexpr size_t kBytes = size_t{8} << 20;
  void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  EXPECT_EQ(untouched_bytes(at, kBytes), static_cast<int64_t>(kBytes));
  std::memset(at, 1, kBytes / 2);
  EXPECT_LE(untouched_bytes(at, kBytes), static_cast<int64_t>(kBytes / 2));
  std::memset(at, 1, kBytes);
  EXPECT_EQ(untouched_bytes(at, kBytes), 0);
  munmap(at, kBytes);
}
#endif

TEST(NearestName, OffersOnlyLikelyNames) {
  std::vector<std::string> known = {"rank", "alpha", "learning_rate"};
  EXPECT_EQ(nearest_name("rnak", known), "rank");
  EXPECT_EQ(nearest_name("learning-rate", known), "learning_rate");
  EXPECT_EQ(nearest_name("zzz", known), "");
}

}  // namespace
}  // namespace wick
