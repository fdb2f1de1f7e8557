// SPDX-License-Identifier: Apache-2.0
#include "text/unicode.h"

#include <gtest/gtest.h>

#include <string>

namespace wick::unicode {
namespace {

std::string times(size_t count, const std::string& text) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST(Unicode, NormalForms) {
  const std::string text = "e\u0301 \u1e9b\u0323 \uac01\ufb01\u00c5";
  EXPECT_EQ(normal_form(text, Form::kNfc), "\u00e9 \u1e9b\u0323 \uac01\ufb01\u00c5");
  EXPECT_EQ(normal_form(text, Form::kNfd),
            "e\u0301 \u017f\u0323\u0307 \u1100\u1161\u11a8\ufb01A\u030a");
  EXPECT_EQ(normal_form(text, Form::kNfkc), "\u00e9 \u1e69 \uac01fi\u00c5");
  EXPECT_EQ(normal_form(text, Form::kNfkd), "e\u0301 s\u0323\u0307 \u1100\u1161\u11a8fiA\u030a");
  EXPECT_EQ(normal_form("", Form::kNfc), "");
  EXPECT_EQ(normal_form(std::string("\0\u0301", 3), Form::kNfd), std::string("\0\u0301", 3));
  // Marks of one class keep their order.
  EXPECT_EQ(normal_form("a\u0315\u0301\u0323\u0300b\u0301\u0323", Form::kNfd),
            "a\u0323\u0301\u0300\u0315b\u0323\u0301");
}

// In quadratic time this would take minutes.
TEST(Unicode, ManyMarksOnOneCharacter) {
  constexpr size_t kMany = 200000;
  EXPECT_EQ(normal_form("a" + times(kMany, "\u0315\u0300"), Form::kNfd),
            "a" + times(kMany, "\u0300") + times(kMany, "\u0315"));
}

}  // namespace
}  // namespace wick::unicode
