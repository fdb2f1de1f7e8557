// SPDX-License-Identifier: Apache-2.0
// What the readers of tokenizer.json's components share.
#pragma once

#include <string>
#include <string_view>

#include "base/check.h"
#include "io/json.h"

namespace wick {

// Sequences inside sequences; real files have one level.
constexpr int kMaxComponentDepth = 16;

inline void check_component_depth(int depth, const std::string& where) {
  if (depth > kMaxComponentDepth)
    fail(ErrorCode::kUnsupported, where, ": components nested more than ", kMaxComponentDepth,
         " levels deep");
}

[[noreturn]] inline void unsupported_component(const std::string& where, std::string_view type,
                                               std::string_view known) {
  fail(ErrorCode::kUnsupported, where, ".type is \"", type, "\", which wick does not do; it knows ",
       known);
}

// The array that a Sequence holds under `key`. Throws: kCorruptFile.
inline const Json& sequence_items(const Json& json, std::string_view key,
                                  const std::string& where) {
  const Json* items = find_member(json, key);
  if (!items || !items->is_array())
    fail(ErrorCode::kCorruptFile, where, ".", key, ": expected an array, got ",
         items ? json_kind(*items) : "nothing");
  return *items;
}

inline std::string item_path(const std::string& where, std::string_view key, size_t index) {
  return cat(where, ".", key, "[", index, "]");
}

}  // namespace wick
