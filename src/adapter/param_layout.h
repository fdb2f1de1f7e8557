// SPDX-License-Identifier: Apache-2.0
// ParamLayout: where each trainable tensor lies in the one flat f32 parameter state. Gradients and
// moments have the same layout, so that one optimizer step covers them all.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/shape.h"

namespace wick {

class ParamLayout {
 public:
  struct Entry {
    std::string name;
    Shape shape;
    int64_t offset = 0;
    float lr_scale = 1.0f;  // times the learning rate
    bool turned = false;    // kept as the transpose of what PEFT trains
  };

  // Appends a tensor and returns its offset. Requires: a name not used before.
  int64_t add(const std::string& name, Shape shape, float lr_scale = 1.0f, bool turned = false) {
    WICK_CHECK(index_.emplace(name, entries_.size()).second, name, " is declared twice");
    entries_.push_back({name, shape, size_, lr_scale, turned});
    size_ += shape.elements();
    return entries_.back().offset;
  }
  const Entry* find(const std::string& name) const {
    auto found = index_.find(name);
    return found == index_.end() ? nullptr : &entries_[found->second];
  }
  const std::vector<Entry>& entries() const { return entries_; }
  int64_t size() const { return size_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
  int64_t size_ = 0;
};

}  // namespace wick
