// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_search.h"

#include <algorithm>

namespace wick::jinja {

void Search::charge(size_t bytes) {
  charged_ += bytes;
  budget_.step(charged_ / Budget::kBytesPerStep);
  charged_ %= Budget::kBytesPerStep;
}

bool Search::is_at(size_t place) {
  const std::string_view here = text_.substr(place, wanted_.size());
  const auto differs = std::mismatch(wanted_.begin(), wanted_.end(), here.begin()).first;
  charge(static_cast<size_t>(differs - wanted_.begin()));
  return differs == wanted_.end();
}

size_t Search::first(size_t from) {
  if (wanted_.empty()) return from;
  while (from + wanted_.size() <= text_.size()) {
    const size_t place = std::min(text_.find(wanted_.front(), from), text_.size());
    charge(place - from + 1);
    if (place + wanted_.size() > text_.size()) break;
    if (is_at(place)) return place;
    from = place + 1;
  }
  return std::string_view::npos;
}

size_t Search::last(size_t end) {
  if (wanted_.size() > end) return std::string_view::npos;
  for (size_t behind = end - wanted_.size() + 1; behind > 0; --behind) {
    charge(1);
    if (is_at(behind - 1)) return behind - 1;
  }
  return std::string_view::npos;
}

}  // namespace wick::jinja
