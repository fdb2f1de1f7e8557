// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "wick/handle.h"

namespace wick {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kCorruptFile:
      return "corrupt file";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

void fail_moved_from() {
  fail(ErrorCode::kInvalidArgument,
       "this object was moved from and is empty; use the one that it was moved to");
}

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      int above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

namespace detail {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  const char* name = file;
  for (const char* p = file; *p; ++p)
    if (*p == '/') name = p + 1;
  throw Error(ErrorCode::kInternal,
              cat(name, ":", line, ": ", condition, " does not hold", message.empty() ? "" : ": ",
                  message, "; this is a mistake in wick, please report it"));
}

}  // namespace detail
}  // namespace wick
