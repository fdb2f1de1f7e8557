// SPDX-License-Identifier: Apache-2.0
// Handle: the private part of a class of this API. What was made from an object keeps this part of
// it, so that objects may be moved and may end in any order. It is empty once that was moved from,
// and whoever uses it then is told so by a kInvalidArgument.
#pragma once

#include <memory>
#include <utility>

namespace wick {

[[noreturn]] void fail_moved_from();

template <typename T>
class Handle {
 public:
  Handle(std::shared_ptr<T> owned) noexcept : owned_(std::move(owned)) {}

  const std::shared_ptr<T>& share() const {
    if (!owned_) fail_moved_from();
    return owned_;
  }
  T* get() const { return share().get(); }
  T& operator*() const { return *get(); }
  T* operator->() const { return get(); }

 private:
  std::shared_ptr<T> owned_;
};

}  // namespace wick
