// SPDX-License-Identifier: Apache-2.0
// PrefixStore: bytes by (set, row), in memory or in a file, up to a budget.
//
// The file is a log: a header with the key of everything its numbers depend on, then one record per
// row, each with its own checksum. A run that was killed leaves at most an unfinished last record,
// which is cut off; a record that does not check is as good as absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace wick {

class PrefixStore {
 public:
  using Key = std::pair<int32_t, int64_t>;  // which data set, which of its rows

  // In memory.
  explicit PrefixStore(int64_t budget_bytes) : budget_(budget_bytes) {}
  // In a file, which is begun anew where it has another key. Throws: kIo, also where another
  // process uses it.
  PrefixStore(const std::filesystem::path& file, uint64_t key, int64_t budget_bytes);
  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  bool has(Key at) const { return memory_.count(at) > 0 || places_.count(at) > 0; }
  // Copies a row's bytes out; false where it is not there in just that size.
  bool get(Key at, std::span<std::byte> to);
  // Keeps a row if the budget has room for it. Throws: kIo.
  void put(Key at, std::span<const std::byte> bytes);

  int64_t bytes() const { return used_; }
  int64_t rows() const { return static_cast<int64_t>(memory_.size() + places_.size()); }

 private:
  struct Place {
    int64_t offset = 0, bytes = 0;
    uint64_t checksum = 0;
  };
  void read_index();

  int64_t budget_ = 0, used_ = 0;
  std::map<Key, std::vector<std::byte>> memory_;
  std::filesystem::path path_;
  int file_ = -1;
  uint64_t key_ = 0;
  int64_t end_ = 0;  // of the last whole record
  std::map<Key, Place> places_;
};

}  // namespace wick
