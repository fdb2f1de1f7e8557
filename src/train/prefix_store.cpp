// SPDX-License-Identifier: Apache-2.0
#include "train/prefix_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/rng.h"

namespace wick {

namespace {

constexpr uint64_t kMagic = 0x3158465057434b31;

struct Header {
  uint64_t magic = 0, key = 0;
};
struct Record {
  int64_t row = 0, bytes = 0;
  uint64_t checksum = 0;
  int64_t set = 0;
};

uint64_t checksum_of(std::span<const std::byte> bytes) {
  uint64_t sum = mix_key(kMagic, bytes.size());
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= bytes.size(); i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    sum = (sum ^ word) * 0x9e3779b97f4a7c15;
    sum ^= sum >> 29;
  }
  for (; i < bytes.size(); ++i) sum = mix_key(sum, static_cast<uint64_t>(bytes[i]));
  return sum;
}

bool read_at(int file, int64_t offset, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = ::pread(file, at, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

void write_at(int file, const std::filesystem::path& path, int64_t offset, const void* from,
              size_t bytes) {
  auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(file, at, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(ErrorCode::kIo, path.string(), ": cannot be written: ", std::strerror(errno));
    at += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
}

}  // namespace

PrefixStore::PrefixStore(const std::filesystem::path& file, uint64_t key, int64_t budget_bytes)
    : budget_(budget_bytes), path_(file), key_(key) {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) fail(ErrorCode::kIo, path_.string(), ": cannot be opened: ", std::strerror(errno));
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    ::close(file_);
    fail(ErrorCode::kIo, path_.string(),
         ": another run uses this cache; give --prefix-cache another folder, or memory");
  }
  read_index();
}

PrefixStore::~PrefixStore() {
  if (file_ >= 0) ::close(file_);
}

void PrefixStore::read_index() {
  struct stat info {};
  const int64_t size = ::fstat(file_, &info) == 0 ? static_cast<int64_t>(info.st_size) : 0;
  Header header;
  if (!read_at(file_, 0, &header, sizeof header) || header.magic != kMagic || header.key != key_) {
    if (::ftruncate(file_, 0) != 0)
      fail(ErrorCode::kIo, path_.string(), ": cannot be written: ", std::strerror(errno));
    header = {kMagic, key_};
    write_at(file_, path_, 0, &header, sizeof header);
    end_ = sizeof header;
    return;
  }
  end_ = sizeof header;
  Record r;
  while (read_at(file_, end_, &r, sizeof r)) {
    const int64_t data = end_ + static_cast<int64_t>(sizeof r);
    if (r.bytes < 0 || r.row < 0 || r.bytes > size - data) break;
    places_[{static_cast<int32_t>(r.set), r.row}] = {data, r.bytes, r.checksum};
    used_ += r.bytes;
    end_ = data + r.bytes;
  }
}

bool PrefixStore::get(Key at, std::span<std::byte> to) {
  if (auto found = memory_.find(at); found != memory_.end()) {
    if (found->second.size() != to.size()) return false;
    std::memcpy(to.data(), found->second.data(), to.size());
    return true;
  }
  auto found = places_.find(at);
  if (found == places_.end()) return false;
  const Place& place = found->second;
  if (place.bytes == static_cast<int64_t>(to.size()) &&
      read_at(file_, place.offset, to.data(), to.size()) && checksum_of(to) == place.checksum)
    return true;
  places_.erase(found);
  return false;
}

void PrefixStore::put(Key at, std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (has(at) || used_ + size > budget_) return;
  used_ += size;
  if (file_ < 0) {
    memory_[at].assign(bytes.begin(), bytes.end());
    return;
  }
  const Record r{at.second, size, checksum_of(bytes), at.first};
  const int64_t data = end_ + static_cast<int64_t>(sizeof r);
  write_at(file_, path_, data, bytes.data(), bytes.size());
  write_at(file_, path_, end_, &r, sizeof r);
  places_[at] = {data, size, r.checksum};
  end_ = data + size;
}

}  // namespace wick
