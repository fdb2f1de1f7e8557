// SPDX-License-Identifier: Apache-2.0
#include "api/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/file.h"

namespace wick {

namespace {

// Protocol buffers: a field is a number with a wire type, then its value.
enum Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Fields of Event, Summary, Summary.Value and SessionLog.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr int kSummaryValue = 1, kTag = 1, kSimpleValue = 2;
constexpr int kStatus = 1, kStatusStart = 1;

void put_varint(std::string& out, uint64_t x) {
  for (; x >= 0x80; x >>= 7) out += static_cast<char>(x | 0x80);
  out += static_cast<char>(x);
}

void put_key(std::string& out, int field, Wire wire) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | wire);
}

template <typename T>
void put_fixed(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_bytes(std::string& out, int field, const std::string& bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// TFRecord's: a checksum of bytes that hold checksums would be weak.
uint32_t masked_crc(const std::string& bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

constexpr std::string_view kName = "events.out.tfevents.";

// The largest number behind kName in a folder, else 0.
int64_t newest_number(const std::filesystem::path& folder) {
  constexpr int64_t kMost = 9'999'999'999;  // of ten digits, as clocks have them until 2286
  int64_t newest = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kName)) continue;
    int64_t number = 0;
    std::from_chars(name.data() + kName.size(), name.data() + name.size(), number);
    if (number < kMost) newest = std::max(newest, number);
  }
  return newest;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string tf_record(const std::string& bytes) {
  std::string length, out;
  put_fixed(length, static_cast<uint64_t>(bytes.size()));
  out = length;
  put_fixed(out, masked_crc(length));
  out += bytes;
  put_fixed(out, masked_crc(bytes));
  return out;
}

EventFile::EventFile(const std::filesystem::path& folder, std::optional<int64_t> after) {
  make_folder(folder);
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  auto seconds = static_cast<int64_t>(wall_seconds());
  // Files are read in the order of their names: what goes on is behind what was, also where the
  // clock was set back.
  if (after) seconds = std::max(seconds, newest_number(folder) + 1);
  path_ = folder / cat(kName, seconds, ".", host, ".", ::getpid(), ".0");
  file_.open(path_, std::ios::binary | std::ios::trunc);
  write_event(0, kFileVersion, "brain.Event:2");
  if (after) {
    std::string log;
    put_key(log, kStatus, kVarint);
    put_varint(log, kStatusStart);
    // A look before the first update is of step 0.
    write_event(*after > 0 ? *after + 1 : 0, kSessionLog, log);
  }
}

void EventFile::write_event(int64_t step, int field, const std::string& message) {
  std::string event;
  put_key(event, kWallTime, kFixed64);
  put_fixed(event, wall_seconds());
  put_key(event, kStep, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, field, message);
  const std::string record = tf_record(event);
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
  file_.flush();
  if (!file_) fail(ErrorCode::kIo, path_.string(), ": cannot be written; is the disk full?");
}

void EventFile::add(int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string one;
    put_bytes(one, kTag, tag);
    put_key(one, kSimpleValue, kFixed32);
    put_fixed(one, static_cast<float>(value));
    put_bytes(summary, kSummaryValue, one);
  }
  write_event(step, kSummary, summary);
}

}  // namespace wick
