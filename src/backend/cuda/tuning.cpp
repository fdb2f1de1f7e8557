// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/tuning.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/check.h"
#include "base/file.h"

namespace wick::cuda {
namespace {

constexpr size_t kMostBytes = size_t{16} << 20;  // of a file that is believed

std::string to_hex(const void* value, size_t bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (size_t i = 0; i < bytes; ++i) {
    const auto byte = static_cast<const unsigned char*>(value)[i];
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

TuningTable::TuningTable(const std::string& file) : file_(file) { load(); }

void TuningTable::load() {
  std::error_code error;
  if (file_.empty() || !std::filesystem::exists(file_, error)) return;
  if (std::filesystem::file_size(file_, error) > kMostBytes || error) return;
  try {
    std::istringstream lines(read_file(file_));
    for (std::string line; std::getline(lines, line);)
      if (const size_t at = line.find(" = "); at != std::string::npos)
        entries_[line.substr(0, at)] = line.substr(at + 3);
  } catch (const Error&) {
    entries_.clear();
  }
}

bool TuningTable::find(const std::string& name, void* value, size_t bytes) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end() || entry->second.size() != 2 * bytes) return false;
  for (size_t i = 0; i < bytes; ++i) {
    const int high = digit(entry->second[2 * i]), low = digit(entry->second[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    static_cast<unsigned char*>(value)[i] = static_cast<unsigned char>(16 * high + low);
  }
  return true;
}

void TuningTable::add(const std::string& name, void* value, size_t bytes, bool replaces) {
  if (!usable()) return;
  load();
  if (!replaces && find(name, value, bytes)) return;
  entries_[name] = to_hex(value, bytes);
  std::string text;
  for (const auto& [key, hex] : entries_) text += cat(key, " = ", hex, "\n");
  try {
    std::filesystem::create_directories(std::filesystem::path(file_).parent_path());
    write_file(file_, text);
  } catch (const std::exception&) {
    file_.clear();
  }
}

std::string tuning_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/wick";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/wick" : std::string();
}

}  // namespace wick::cuda
