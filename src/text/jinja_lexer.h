// SPDX-License-Identifier: Apache-2.0
// Splits a template into tokens with jinja2's white-space rules (trim_blocks, lstrip_blocks, the
// signs - and + in tags, one trailing newline dropped). Comments and raw markers are gone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wick::jinja {

enum class TokenKind {
  kData,  // text between tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // `text` is the decoded string
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
  int64_t integer = 0;
  double number = 0;

  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
};

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;

// A mistake in the template's text. Becomes a wick::Error once the template's name is known.
struct SyntaxError {
  int line;
  std::string message;
  bool unsupported = false;  // valid jinja2 that wick refuses
};

// The last token is kEnd. Throws: SyntaxError.
std::vector<Token> tokenize(std::string_view source);

}  // namespace wick::jinja
