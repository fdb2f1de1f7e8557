// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/check.h"
#include "text/jinja_unicode.h"

namespace wick::jinja {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

std::string normalize_newlines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
      out += '\n';
    } else {
      out += text[i];
    }
  }
  return out;
}

size_t skip_space(std::string_view text, size_t pos) {
  return pos + leading_length(text.substr(pos), nullptr);
}

// Python's unicode-escape decoding, with what jinja2's detour through ASCII does to a backslash
// before a character beyond it.
class StringDecoder {
 public:
  StringDecoder(std::string_view body, int line) : body_(body), line_(line) {}

  std::string decode() {
    while (pos_ < body_.size()) {
      char c = body_[pos_++];
      if (c != '\\' || pos_ == body_.size())
        out_ += c;
      else
        escape();
    }
    return std::move(out_);
  }

 private:
  void escape() {
    size_t at = pos_;
    uint32_t c = next_code_point(body_, pos_);
    switch (c) {
      case '\n':
        return;
      case '\\':
      case '\'':
      case '"':
        out_ += static_cast<char>(c);
        return;
      case 'a':
        out_ += '\a';
        return;
      case 'b':
        out_ += '\b';
        return;
      case 'f':
        out_ += '\f';
        return;
      case 'n':
        out_ += '\n';
        return;
      case 'r':
        out_ += '\r';
        return;
      case 't':
        out_ += '\t';
        return;
      case 'v':
        out_ += '\v';
        return;
      case 'x':
        code_point(hex(2));
        return;
      case 'u':
        code_point(hex(4));
        return;
      case 'U':
        code_point(hex(8));
        return;
      case 'N':
        throw SyntaxError{line_, "\\N{…} in a string is not supported; write \\uXXXX", true};
      default:
        break;
    }
    if (c >= '0' && c <= '7') {
      uint32_t value = 0;
      for (pos_ = at;
           pos_ < body_.size() && pos_ < at + 3 && body_[pos_] >= '0' && body_[pos_] <= '7';)
        value = value * 8 + static_cast<uint32_t>(body_[pos_++] - '0');
      code_point(value);
    } else if (c < 0x80) {
      out_ += '\\';
      out_ += static_cast<char>(c);
    } else {
      char buffer[16];
      std::snprintf(buffer, sizeof buffer,
                    c < 0x100     ? "\\x%02x"
                    : c < 0x10000 ? "\\u%04x"
                                  : "\\U%08x",
                    c);
      out_ += buffer;
    }
  }

  uint32_t hex(size_t digits) {
    uint32_t value = 0;
    auto text = body_.substr(std::min(pos_, body_.size()), digits);
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() != digits || error != std::errc() || end != text.data() + digits)
      throw SyntaxError{line_, "truncated \\x or \\u escape in a string"};
    pos_ += digits;
    return value;
  }

  void code_point(uint32_t c) {
    if (c >= 0xd800 && c < 0xdc00 && body_.substr(pos_, 2) == "\\u") {
      size_t at = pos_;
      pos_ += 2;
      uint32_t low = hex(4);
      if (low >= 0xdc00 && low < 0xe000) {
        append_code_point(out_, 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00));
        return;
      }
      pos_ = at;
    }
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
      throw SyntaxError{line_, "illegal Unicode character in a string escape"};
    append_code_point(out_, c);
  }

  std::string_view body_;
  int line_;
  size_t pos_ = 0;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), text_(source_) {}

  std::vector<Token> run() {
    while (pos_ < text_.size()) root();
    emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool at(std::string_view s, size_t pos) const { return text_.substr(pos, s.size()) == s; }

  void emit(TokenKind kind, std::string_view text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = text;
    tokens_.push_back(std::move(token));
  }

  // Moves to `end`, counting lines; what was passed decides whether a line starts here.
  void advance(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(pos_),
                                         text_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    if (end > pos_) line_starting_ = text_[end - 1] == '\n';
    pos_ = end;
  }

  // The text before a tag that starts at `tag` with the given sign, without the white space that
  // the tag takes away.
  std::string_view before_tag(size_t tag, char sign, bool variable) const {
    std::string_view data = text_.substr(pos_, tag - pos_);
    if (sign == '-') return data.substr(0, data.size() - trailing_length(data, nullptr));
    if (sign == '+' || variable) return data;
    size_t newline = data.rfind('\n');
    size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return data;
    bool blank = skip_space(data, line) == data.size();
    return blank ? data.substr(0, line) : data;
  }

  void data(std::string_view text) {
    if (!text.empty()) emit(TokenKind::kData, text);
  }

  // Behind "…%}" at `pos`, a sign and the white space or newline that it takes; npos if none is
  // there.
  size_t block_end(size_t pos) const {
    if (at("+%}", pos)) return pos + 3;
    if (at("-%}", pos)) return skip_space(text_, pos + 3);
    if (at("%}", pos)) return pos + 2 + (at("\n", pos + 2) ? 1 : 0);
    return std::string_view::npos;
  }

  void root() {
    size_t tag = pos_;
    while (true) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos) {
        data(text_.substr(pos_));
        advance(text_.size());
        return;
      }
      char kind = tag + 1 < text_.size() ? text_[tag + 1] : ' ';
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++tag;
    }
    char kind = text_[tag + 1];
    char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    size_t inside = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    data(before_tag(tag, sign, kind == '{'));
    if (kind == '%' && raw_block(inside)) return;
    advance(inside);
    if (kind == '#') {
      comment();
    } else if (kind == '%') {
      emit(TokenKind::kBlockBegin, "{%");
      tag_tokens(true);
    } else {
      emit(TokenKind::kVariableBegin, "{{");
      tag_tokens(false);
    }
  }

  void comment() {
    size_t end = text_.find("#}", pos_);
    if (end == std::string_view::npos) throw SyntaxError{line_, "Missing end of comment tag"};
    char sign = end > pos_ ? text_[end - 1] : ' ';
    end += 2;
    if (sign == '-')
      end = skip_space(text_, end);
    else if (sign != '+' && at("\n", end))
      ++end;
    advance(end);
  }

  bool raw_block(size_t inside) {
    size_t p = skip_space(text_, inside);
    if (!at("raw", p)) return false;
    p = skip_space(text_, p + 3);
    if (at("-%}", p))
      p = skip_space(text_, p + 3);
    else if (at("%}", p))
      p += 2;
    else
      return false;
    advance(p);
    for (size_t tag = text_.find("{%", p); tag != std::string_view::npos;
         tag = text_.find("{%", tag + 1)) {
      char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
      size_t q = skip_space(text_, tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
      if (!at("endraw", q)) continue;
      size_t end = block_end(skip_space(text_, q + 6));
      if (end == std::string_view::npos) continue;
      data(before_tag(tag, sign, false));
      advance(end);
      return true;
    }
    throw SyntaxError{line_, "Missing end of raw directive"};
  }

  void tag_tokens(bool block) {
    std::string open;
    while (true) {
      if (pos_ >= text_.size()) return;  // the parser says what is missing
      if (open.empty()) {
        size_t end = std::string_view::npos;
        if (block)
          end = block_end(pos_);
        else if (at("-}}", pos_))
          end = skip_space(text_, pos_ + 3);
        else if (at("}}", pos_))
          end = pos_ + 2;
        if (end != std::string_view::npos) {
          emit(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, block ? "%}" : "}}");
          advance(end);
          return;
        }
      }
      size_t p = skip_space(text_, pos_);
      if (p > pos_) {
        advance(p);
        continue;
      }
      if (number() || name() || string()) continue;
      op(open);
    }
  }

  // (digits and single underscores between them) from p
  size_t digits(size_t p) const {
    size_t start = p;
    while (p < text_.size() &&
           (digit(text_[p]) || (text_[p] == '_' && p > start && digit(text_[p - 1]) &&
                                p + 1 < text_.size() && digit(text_[p + 1]))))
      ++p;
    return p;
  }

  bool number() {
    if (!digit(text_[pos_])) return false;
    size_t p = digits(pos_), whole = p;
    bool after_dot = pos_ > 0 && text_[pos_ - 1] == '.';
    bool floating = false;
    if (!after_dot) {
      if (at(".", p) && p + 1 < text_.size() && digit(text_[p + 1])) {
        p = digits(p + 1);
        floating = true;
      }
      if (p < text_.size() && (text_[p] == 'e' || text_[p] == 'E')) {
        size_t q = p + 1;
        if (q < text_.size() && (text_[q] == '+' || text_[q] == '-')) ++q;
        if (q < text_.size() && digit(text_[q])) {
          p = digits(q);
          floating = true;
        }
      }
    }
    if (!floating) p = whole;
    std::string clean(text_.substr(pos_, p - pos_));
    clean.erase(std::remove(clean.begin(), clean.end(), '_'), clean.end());
    if (floating) {
      emit(TokenKind::kFloat, clean);
      tokens_.back().number = std::strtod(clean.c_str(), nullptr);
      advance(p);
      return true;
    }
    integer(clean, p);
    return true;
  }

  void integer(std::string clean, size_t end) {
    int base = 10;
    if (clean == "0" && end < text_.size()) {
      char x = static_cast<char>(text_[end] | 0x20);
      base = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 10;
      if (base != 10) {
        size_t q = end + 1;
        auto valid = [&](char c) {
          int v = digit(c)               ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                         : 99;
          return v < base;
        };
        std::string body;
        while (q < text_.size() && (valid(text_[q]) || (text_[q] == '_' && q + 1 < text_.size() &&
                                                        valid(text_[q + 1])))) {
          if (text_[q] != '_') body += text_[q];
          ++q;
        }
        if (body.empty()) {
          base = 10;
        } else {
          clean = body;
          end = q;
        }
      }
    } else if (clean.size() > 1 && clean[0] == '0') {
      // 007 is the zeros, and then another number
      size_t zeros = 0;
      while (pos_ + zeros < end && text_[pos_ + zeros] == '0') ++zeros;
      if (pos_ + zeros < end) {
        end = pos_ + zeros;
        clean = "0";
      }
    }
    emit(TokenKind::kInteger, clean);
    auto [p, error] =
        std::from_chars(clean.data(), clean.data() + clean.size(), tokens_.back().integer, base);
    if (error != std::errc())
      throw SyntaxError{line_, cat("the number ", clean, " does not fit in 64 bits"), true};
    advance(end);
  }

  bool name() {
    size_t p = pos_;
    while (p < text_.size()) {
      size_t q = p;
      uint32_t c = next_code_point(text_, q);
      bool word =
          c == '_' ||
          (c < 0x80 ? (digit(static_cast<char>(c)) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
                    : c < 0x110000 && (is_alpha(c) || is_numeric(c)));
      if (!word) break;
      p = q;
    }
    if (p == pos_) return false;
    emit(TokenKind::kName, text_.substr(pos_, p - pos_));
    advance(p);
    return true;
  }

  bool string() {
    char quote = text_[pos_];
    if (quote != '"' && quote != '\'') return false;
    size_t p = pos_ + 1;
    while (p < text_.size() && text_[p] != quote) p += text_[p] == '\\' ? 2 : 1;
    if (p >= text_.size()) return false;
    emit(TokenKind::kString, "");
    tokens_.back().text = StringDecoder(text_.substr(pos_ + 1, p - pos_ - 1), line_).decode();
    advance(p + 1);
    return true;
  }

  void op(std::string& open) {
    static constexpr std::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (std::string_view o : kOperators) {
      if (!at(o, pos_)) continue;
      char c = o[0];
      if (o.size() == 1) {
        if (c == '(') open += ')';
        if (c == '[') open += ']';
        if (c == '{') open += '}';
        if (c == ')' || c == ']' || c == '}') {
          if (open.empty()) throw SyntaxError{line_, cat("unexpected '", c, "'")};
          if (open.back() != c)
            throw SyntaxError{line_, cat("unexpected '", c, "', expected '", open.back(), "'")};
          open.pop_back();
        }
      }
      emit(TokenKind::kOperator, o);
      advance(pos_ + o.size());
      return;
    }
    size_t end = pos_;
    next_code_point(text_, end);
    throw SyntaxError{line_, cat("unexpected char '", text_.substr(pos_, end - pos_), "'")};
  }

  std::string source_;
  std::string_view text_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > kMaxTemplateBytes)
    throw SyntaxError{1, cat("the template has ", source.size(), " bytes; at most ",
                             kMaxTemplateBytes, " are read")};
  std::string text = normalize_newlines(source);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return Lexer(std::move(text)).run();
}

}  // namespace wick::jinja
