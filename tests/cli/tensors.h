// SPDX-License-Identifier: Apache-2.0
// Files of tensors, put together by hand.
#pragma once

#include <cstring>
#include <string>

#include "io/json.h"

namespace wick::test {

struct Tensors {
  Json header;
  std::string data;
};
inline Tensors tensors_of(const std::string& text) {
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  return {parse_json(text.substr(8, length), "safetensors"), text.substr(8 + length)};
}

// A file of tensors, and behind them `tensor` of the file `other` by another name. `flipped` bits
// of its first number are turned: 0x80 is the sign.
inline std::string with_copy(const std::string& text, const std::string& other,
                             const std::string& tensor, const std::string& name, char flipped = 0) {
  const Tensors from = tensors_of(other);
  Tensors to = tensors_of(text);
  Json entry = from.header[tensor];
  const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
  std::string copy = from.data.substr(begin, end - begin);
  copy[3] = static_cast<char>(copy[3] ^ flipped);
  entry["data_offsets"] = {to.data.size(), to.data.size() + copy.size()};
  to.header[name] = entry;
  const std::string words = dump_json(to.header);
  const uint64_t length = words.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + words + to.data + copy;
}

}  // namespace wick::test
