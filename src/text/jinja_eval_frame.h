// SPDX-License-Identifier: Apache-2.0
// Scopes and guards of the evaluator. Private to its files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_eval.h"

namespace wick::jinja {

struct Evaluator::Frame {
  std::shared_ptr<Frame> parent;
  // Without a value: known here and not assigned yet. Names point into the template.
  std::vector<std::pair<std::string_view, std::optional<Value>>> variables;
  Value input;        // what a filter block or a filtered set block captured
  bool held = false;  // by a macro

  void set(std::string_view name, Value value) {
    for (auto& [known, slot] : variables)
      if (known == name) {
        slot = std::move(value);
        return;
      }
    variables.emplace_back(name, std::move(value));
  }
};

// Counts the depth of evaluation, which is what bounds the stack.
struct Evaluator::Enter {
  static constexpr int kMaxDepth = 1000;
  Evaluator& e;
  explicit Enter(Evaluator& evaluator) : e(evaluator) {
    e.budget.step();
    if (e.depth_ >= kMaxDepth) raise("the template recurses deeper than ", kMaxDepth, " levels");
    ++e.depth_;
  }
  ~Enter() { --e.depth_; }
  Enter(const Enter&) = delete;
  Enter& operator=(const Enter&) = delete;
};

// Sets a member for the life of a scope.
template <typename T>
struct Keep {
  T& slot;
  T old;
  Keep(T& s, T value) : slot(s), old(s) { s = value; }
  ~Keep() { slot = old; }
  Keep(const Keep&) = delete;
  Keep& operator=(const Keep&) = delete;
};

// Cuts a loop object off from the statement and scope that drive it.
struct LoopLife {
  Loop& loop;
  explicit LoopLife(Loop& l) : loop(l) {}
  ~LoopLife() {
    loop.fetch = [](Value&) { return false; };
    loop.recurse = nullptr;
  }
  LoopLife(const LoopLife&) = delete;
  LoopLife& operator=(const LoopLife&) = delete;
};

inline Value make_undefined(std::string message, bool security = false) {
  return Value(std::make_shared<const Undefined>(Undefined{std::move(message), security}));
}

void check_namespace_name(const std::string& name);

}  // namespace wick::jinja
