// SPDX-License-Identifier: Apache-2.0
// A text in the making (normalised, with marks for spaces, …) that knows, for each byte, which
// range of the original text it came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

// Of bytes: of the original text, or of a text in the making.
struct Range {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

struct Source {
  uint32_t begin = 0, end = 0;
};

class AlignedText {
 public:
  AlignedText() = default;
  // Any bytes below 4 GiB. What is not UTF-8 becomes U+FFFD, aligned with the bytes it stands for.
  explicit AlignedText(std::string_view original);

  std::string_view text() const { return text_; }
  std::string_view slice_text(Range r) const { return text().substr(r.begin, r.size()); }
  // The original characters behind a range that is not empty; it need not be of whole characters.
  Source source_of(Range r) const;
  AlignedText slice(Range r) const;

  // Building a changed text: one that is empty but keeps the bounds of this one, then pieces.
  AlignedText rewritten() const;
  void keep(const AlignedText& from, Range r);            // as it is there
  void put(std::string_view replacement, Source source);  // all of it made from `source`

 private:
  std::string text_;
  // One per byte; empty: byte i is byte base_ + i of the original.
  std::vector<Source> sources_;
  uint32_t base_ = 0;
  bool identity_ = true;
  size_t limit_ = 0;  // no file may blow a text up beyond this
};

}  // namespace wick
