// SPDX-License-Identifier: Apache-2.0
// Handle: the private part of a class of this API. It is empty once that was moved from, and
// whoever uses it then is told so by a kInvalidArgument.
#pragma once

#include <memory>
#include <utility>

namespace wick {

[[noreturn]] void fail_moved_from();

template <typename T>
class Handle {
 public:
  Handle(std::unique_ptr<T> owned) noexcept : owned_(std::move(owned)) {}

  T* get() const {
    if (!owned_) fail_moved_from();
    return owned_.get();
  }
  T& operator*() const { return *get(); }
  T* operator->() const { return get(); }

 private:
  std::unique_ptr<T> owned_;
};

}  // namespace wick
