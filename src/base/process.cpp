// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

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

void release_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
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

int64_t free_disk_bytes(const char* path) {
  struct statvfs info {};
  if (statvfs(path, &info) != 0) return -1;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace wick
