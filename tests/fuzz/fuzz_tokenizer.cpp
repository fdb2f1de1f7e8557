// SPDX-License-Identifier: Apache-2.0
// The input up to the first zero byte is a tokenizer.json, the rest a text. Whatever they are: a
// wick::Error, or tokens whose ranges lie in the text and that stream as they decode.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/tokenizer.h"
#include "text/unicode.h"
#include "wick/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t end = input.find('\0');
  std::string_view json = input.substr(0, end);
  std::string_view text = end == input.npos ? json : input.substr(end + 1);
  try {
    wick::Tokenizer tokenizer = wick::Tokenizer::from_json(json);
    std::vector<wick::Token> tokens = tokenizer.encode(text, true);
    std::vector<int32_t> ids;
    for (const wick::Token& token : tokens) {
      if (token.begin > token.end || token.end > text.size()) std::abort();
      tokenizer.bytes_of(token.id);
      ids.push_back(token.id);
    }
    for (bool skip_special : {true, false}) {
      std::string whole = tokenizer.decode(ids, skip_special), joined;
      wick::StreamDecoder stream(tokenizer, skip_special);
      for (int32_t id : ids) {
        std::string piece = stream.push(id);
        if (!wick::unicode::is_valid(piece)) std::abort();
        joined += piece;
      }
      joined += stream.finish();
      if (joined != whole) std::abort();
    }
  } catch (const wick::Error&) {
  }
  return 0;
}
