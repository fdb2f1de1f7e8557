// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace wick {

int64_t peak_memory_bytes() {
  // getrusage also counts what the process was before exec: a copy of whoever started it.
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmHWM:")) return std::atoll(line.c_str() + 6) * 1024;  // in kB
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
#endif
}

void reset_peak_memory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
}

int64_t current_memory_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t untouched_bytes(const void* begin, size_t bytes) {
#ifdef __linux__
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = reinterpret_cast<uintptr_t>(begin) / page * page;
  const size_t length = reinterpret_cast<uintptr_t>(begin) + bytes - from;
  std::vector<unsigned char> in_memory((length + page - 1) / page);
  if (bytes == 0 || mincore(reinterpret_cast<void*>(from), length, in_memory.data()) != 0) return 0;
  int64_t untouched = 0;
  for (unsigned char present : in_memory)
    if ((present & 1) == 0) untouched += static_cast<int64_t>(page);
  return untouched;
#else
  static_cast<void>(begin);
  static_cast<void>(bytes);
  return 0;
#endif
}

void release_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void share_one_heap() {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 1);
  // Otherwise both follow the largest block that was ever freed, and tens of megabytes stay.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
#endif
}

int64_t available_memory_bytes() {
  int64_t available = 0;
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (int64_t value; file >> key >> value; std::getline(file, unit))
    if (key == "MemAvailable:") available = value * 1024;
  // A container's limit, where there is one ("max" otherwise).
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), used_file("/sys/fs/cgroup/memory.current");
  int64_t limit = 0, used = 0;
  if (limit_file >> limit && used_file >> used && limit > 0)
    available = std::min(available, std::max<int64_t>(0, limit - used));
  return available;
}

namespace {

// Seconds that the processors together were busy, and had; zeros where it is not known.
std::pair<double, double> processor_seconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  double sum = 0, idle = 0;
  if (!(file >> name) || name != "cpu") return {0, 0};
  // user, nice, system, idle, waiting, interrupts, soft ones, stolen by the host
  for (int i = 0; i < 8; ++i) {
    double ticks = 0;
    if (!(file >> ticks)) return {0, 0};
    sum += ticks;
    if (i == 3 || i == 4) idle += ticks;
  }
  const auto rate = static_cast<double>(sysconf(_SC_CLK_TCK));
  return {(sum - idle) / rate, sum / rate};
}

double own_seconds() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

OthersShare::OthersShare() : own_(own_seconds()) { std::tie(busy_, all_) = processor_seconds(); }

double OthersShare::since() const {
  const auto [busy, all] = processor_seconds();
  // Ticks are hundredths of a second: less says nothing.
  constexpr double kLeastSeconds = 0.2;
  if (all - all_ < kLeastSeconds) return 0;
  return std::clamp((busy - busy_ - (own_seconds() - own_)) / (all - all_), 0.0, 1.0);
}

int64_t free_disk_bytes(const char* path) {
  struct statvfs info {};
  if (statvfs(path, &info) != 0) return -1;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace wick
