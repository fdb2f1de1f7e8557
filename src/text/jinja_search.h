// SPDX-License-Identifier: Apache-2.0
// Looks for one text in another.
#pragma once

#include <string_view>

#include "text/jinja_value.h"

namespace wick::jinja {

// Charges every byte that it compares: two texts that repeat themselves compare the same bytes
// again at each place. Both texts outlive it.
class Search {
 public:
  Search(Budget& budget, std::string_view text, std::string_view wanted)
      : budget_(budget), text_(text), wanted_(wanted) {}

  // The first place at `from` (at most the text's size) or behind it; npos where there is none.
  size_t first(size_t from = 0);
  // The last place that ends at `end` (at most the text's size) or before it; npos as above.
  size_t last(size_t end);

 private:
  bool is_at(size_t place);
  void charge(size_t bytes);

  Budget& budget_;
  std::string_view text_, wanted_;
  size_t charged_ = 0;  // bytes that are not a whole step yet
};

}  // namespace wick::jinja
