// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_unicode.h"

#include <utf8proc.h>

#include <algorithm>

namespace wick::jinja {
namespace {

// Full upper-case forms that are not one character; the common ones of Unicode's SpecialCasing.
const char* special_upper(uint32_t c) {
  switch (c) {
    case 0x00df:
      return "SS";
    case 0x0149:
      return "\xca\xbcN";
    case 0x01f0:
      return "J\xcc\x8c";
    case 0x0587:
      return "\xd4\xb5\xd5\x92";
    case 0xfb00:
      return "FF";
    case 0xfb01:
      return "FI";
    case 0xfb02:
      return "FL";
    case 0xfb03:
      return "FFI";
    case 0xfb04:
      return "FFL";
    case 0xfb05:
      return "ST";
    case 0xfb06:
      return "ST";
    default:
      return nullptr;
  }
}

const char* special_title(uint32_t c) {
  switch (c) {
    case 0x00df:
      return "Ss";
    case 0xfb00:
      return "Ff";
    case 0xfb01:
      return "Fi";
    case 0xfb02:
      return "Fl";
    case 0xfb03:
      return "Ffi";
    case 0xfb04:
      return "Ffl";
    case 0xfb05:
      return "St";
    case 0xfb06:
      return "St";
    default:
      return special_upper(c);
  }
}

utf8proc_category_t category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool cased(uint32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }

void append_upper(std::string& out, uint32_t c) {
  if (const char* special = special_upper(c))
    out += special;
  else
    append_code_point(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<int>(c))));
}

void append_title(std::string& out, uint32_t c) {
  if (const char* special = special_title(c))
    out += special;
  else
    append_code_point(out, static_cast<uint32_t>(utf8proc_totitle(static_cast<int>(c))));
}

// Lower case depends on the neighbours in one place: a capital sigma that ends a word.
class Lower {
 public:
  explicit Lower(std::string_view text) : text_(text) {}

  void append(std::string& out, uint32_t c, size_t behind) {
    if (c == 0x3a3)
      append_code_point(out, after_cased_ && !cased_follows(behind) ? 0x3c2 : 0x3c3);
    else if (c == 0x130)
      out += "i\xcc\x87";
    else
      append_code_point(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<int>(c))));
  }
  void passed(uint32_t c) {
    if (!ignorable(c)) after_cased_ = cased(c);
  }

 private:
  static bool ignorable(uint32_t c) {
    return c == '\'' || c == 0xb7 || category(c) == UTF8PROC_CATEGORY_MN;
  }
  bool cased_follows(size_t pos) const {
    while (pos < text_.size()) {
      uint32_t c = next_code_point(text_, pos);
      if (!ignorable(c)) return cased(c);
    }
    return false;
  }

  std::string_view text_;
  bool after_cased_ = false;
};

// Walks the text; `write(out, c, lower)` appends the new form of one character, where lower()
// appends its lower case.
template <typename Write>
std::string convert(std::string_view text, Write write) {
  std::string out;
  out.reserve(text.size());
  Lower state(text);
  for (size_t pos = 0; pos < text.size();) {
    uint32_t c = next_code_point(text, pos);
    write(out, c, [&] { state.append(out, c, pos); });
    state.passed(c);
  }
  return out;
}

bool contains(std::string_view chars, uint32_t wanted) {
  for (size_t pos = 0; pos < chars.size();)
    if (next_code_point(chars, pos) == wanted) return true;
  return false;
}

}  // namespace

uint32_t next_code_point(std::string_view text, size_t& pos) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char lead = byte(pos);
  if (lead < 0x80) return ++pos, lead;
  int32_t c = -1;
  auto n =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + pos,
                       static_cast<utf8proc_ssize_t>(std::min<size_t>(4, text.size() - pos)), &c);
  if (n <= 0) {
    ++pos;
    return 0x110000u + lead;  // outside Unicode: written back as the byte it was
  }
  pos += static_cast<size_t>(n);
  return static_cast<uint32_t>(c);
}

void append_code_point(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x110000) {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(c - 0x110000u);
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

size_t code_point_count(std::string_view text) {
  if (is_ascii(text)) return text.size();
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) next_code_point(text, pos);
  return count;
}

std::vector<size_t> code_point_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t pos = 0; pos < text.size(); next_code_point(text, pos)) offsets.push_back(pos);
  offsets.push_back(text.size());
  return offsets;
}

bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool is_printable(uint32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
      return false;
    default:
      return true;
  }
}

bool is_alpha(uint32_t c) {
  auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(uint32_t c) {
  return is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || (c >= 0x2070 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468);
}
bool is_numeric(uint32_t c) {
  auto k = category(c);
  return is_digit(c) || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}
bool is_upper(uint32_t c) { return utf8proc_isupper(static_cast<int>(c)); }
bool is_lower(uint32_t c) { return utf8proc_islower(static_cast<int>(c)); }
bool is_title(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

std::string to_upper(std::string_view text) {
  return convert(text, [](std::string& out, uint32_t c, auto) { append_upper(out, c); });
}

std::string to_lower(std::string_view text) {
  return convert(text, [](std::string&, uint32_t, auto lower) { lower(); });
}

std::string capitalize(std::string_view text) {
  bool first = true;
  return convert(text, [&](std::string& out, uint32_t c, auto lower) {
    if (first)
      append_title(out, c);
    else
      lower();
    first = false;
  });
}

std::string title_case(std::string_view text) {
  bool in_word = false;
  return convert(text, [&](std::string& out, uint32_t c, auto lower) {
    if (in_word)
      lower();
    else
      append_title(out, c);
    in_word = cased(c);
  });
}

std::string swap_case(std::string_view text) {
  return convert(text, [](std::string& out, uint32_t c, auto lower) {
    if (is_upper(c))
      lower();
    else if (is_lower(c))
      append_upper(out, c);
    else
      append_code_point(out, c);
  });
}

std::string case_fold(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    uint32_t c = next_code_point(text, pos);
    if (const char* special = special_upper(c)) {
      out += to_lower(special);
    } else if (c == 0x3c2) {
      append_code_point(out, 0x3c3);
    } else {
      append_code_point(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<int>(c))));
    }
  }
  return out;
}

size_t leading_length(std::string_view text, const std::string* chars) {
  for (size_t pos = 0; pos < text.size();) {
    size_t at = pos;
    uint32_t c = next_code_point(text, pos);
    if (!(chars ? contains(*chars, c) : is_space(c))) return at;
  }
  return text.size();
}

size_t trailing_length(std::string_view text, const std::string* chars) {
  size_t end = text.size();
  while (end > 0) {
    size_t at = end - 1;
    while (at > 0 && end - at < 4 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
    size_t pos = at;
    uint32_t c = next_code_point(text.substr(0, end), pos);
    if (pos != end) {  // stray continuation bytes
      at = pos = end - 1;
      c = next_code_point(text.substr(0, end), pos);
    }
    if (!(chars ? contains(*chars, c) : is_space(c))) break;
    end = at;
  }
  return text.size() - end;
}

}  // namespace wick::jinja
