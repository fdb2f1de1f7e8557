// SPDX-License-Identifier: Apache-2.0
// Building messages and refusing: cat() joins anything printable, fail() throws wick::Error.
#pragma once

#include <sstream>
#include <string>
#include <utility>

#include "wick/error.h"

namespace wick {

template <typename... Parts>
std::string cat(Parts&&... parts) {
  std::ostringstream out;
  if constexpr (sizeof...(parts) > 0) (out << ... << std::forward<Parts>(parts));
  return out.str();
}

template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, Parts&&... parts) {
  throw Error(code, cat(std::forward<Parts>(parts)...));
}

// The name in `known` that is nearest to `given` by edit distance, or "" if none is near enough to
// be a likely typing mistake. For "unknown flag --rnak; did you mean --rank?".
template <typename Range>
std::string nearest_name(const std::string& given, const Range& known);

int edit_distance(const std::string& a, const std::string& b);

template <typename Range>
std::string nearest_name(const std::string& given, const Range& known) {
  std::string best;
  int best_distance = 1 + static_cast<int>(given.size()) / 3;
  for (const auto& name : known) {
    int d = edit_distance(given, std::string(name));
    if (d <= best_distance && (best.empty() || d < best_distance)) {
      best = name;
      best_distance = d;
    }
  }
  return best;
}

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}

}  // namespace wick

// For our own mistakes, always on: throws kInternal with file and line, so that a server lives.
#define WICK_CHECK(condition, ...)                                                            \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::wick::detail::check_failed(__FILE__, __LINE__, #condition, ::wick::cat(__VA_ARGS__)); \
  } while (0)

#ifdef NDEBUG
#define WICK_DCHECK(condition, ...) \
  do {                              \
  } while (0)
#else
#define WICK_DCHECK(condition, ...) WICK_CHECK(condition, __VA_ARGS__)
#endif
