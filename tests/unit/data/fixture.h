// SPDX-License-Identifier: Apache-2.0
// A tokenizer of bytes and a few merges, templates, and a way to write down which part of a row is
// trained.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/inspect.h"
#include "wick/error.h"

namespace wick::data_test {

constexpr const char* kChatMl =
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}";

// The printable stand-ins of byte-level BPE, in UTF-8.
inline std::string byte_piece(int byte) {
  auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !printable(b);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

struct TokenizerOptions {
  bool adds_bos = true;
  bool names_eos = true;
};

// Ids: 0 to 255 the bytes, then the merges, then the special tokens.
inline Tokenizer make_tokenizer(TokenizerOptions options = {}) {
  Json vocab = Json::object(), merges = Json::array(), added = Json::array();
  for (int b = 0; b < 256; ++b) vocab[byte_piece(b)] = b;
  const std::string space = byte_piece(' ');
  const std::pair<std::string, std::string> pairs[] = {
      {"h", "e"},   {"l", "l"},          {"he", "ll"}, {"hell", "o"},
      {space, "y"}, {space + "y", "es"}, {"e", "s"}};
  int id = 256;
  for (const auto& [a, b] : pairs) {
    merges.push_back(a + " " + b);
    vocab[a + b] = id++;
  }
  for (const char* special : {"<s>", "<|im_start|>", "<|im_end|>", "<|end|>"}) {
    Json token = Json::object();
    token["id"] = id++;
    token["content"] = special;
    token["single_word"] = false;
    token["lstrip"] = false;
    token["rstrip"] = false;
    token["normalized"] = false;
    token["special"] = true;
    added.push_back(token);
  }
  Json tokenizer = Json::object();
  tokenizer["version"] = "1.0";
  tokenizer["truncation"] = nullptr;
  tokenizer["padding"] = nullptr;
  tokenizer["added_tokens"] = added;
  tokenizer["normalizer"] = nullptr;
  tokenizer["pre_tokenizer"] = parse_json(
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})",
      "test");
  tokenizer["post_processor"] = nullptr;
  if (options.adds_bos)
    tokenizer["post_processor"] = parse_json(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"Sequence": {"id": "B", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [263], "tokens": ["<s>"]}}})",
                                             "test");
  tokenizer["decoder"] = parse_json(
      R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})",
      "test");
  Json model = Json::object();
  model["type"] = "BPE";
  model["dropout"] = nullptr;
  model["unk_token"] = nullptr;
  model["continuing_subword_prefix"] = nullptr;
  model["end_of_word_suffix"] = nullptr;
  model["fuse_unk"] = false;
  model["byte_fallback"] = false;
  model["vocab"] = vocab;
  model["merges"] = merges;
  tokenizer["model"] = model;
  std::string config = options.names_eos ? R"({"bos_token": "<s>", "eos_token": "<|im_end|>"})"
                                         : R"({"bos_token": "<s>"})";
  return Tokenizer::from_json(dump_json(tokenizer), config);
}

// The decoded row with its trained tokens in 【…】.
inline std::string marked(const Example& example, const Tokenizer& tokenizer) {
  std::string text;
  bool open = false;
  for (const ShownToken& token : shown_tokens(example, tokenizer)) {
    if (token.trained != open) text += token.trained ? "【" : "】";
    open = token.trained;
    text += token.text;
  }
  return open ? text + "】" : text;
}

// A row that is written over several lines.
inline std::string one_line(std::string_view row) {
  std::string line(row);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

class DataTest : public ::testing::Test {
 protected:
  // nullptr: the model has no template.
  ExampleSet load(std::string_view rows, const char* chat_template = kChatMl) {
    std::optional<ChatTemplate> parsed;
    if (chat_template != nullptr) parsed.emplace(chat_template);
    return ExampleSet::from_text(rows, "rows.jsonl", tokenizer, parsed ? &*parsed : nullptr,
                                 options);
  }
  std::string marks(std::string_view row, const char* chat_template = kChatMl) {
    ExampleSet set = load(one_line(row), chat_template);
    EXPECT_EQ(set.size(), 1);
    return marked(set[0], tokenizer);
  }
  // The message of the error that the rows give; every part must be in it.
  void refused(std::string_view rows, const std::vector<std::string>& parts,
               const char* chat_template = kChatMl) {
    try {
      load(rows, chat_template);
      ADD_FAILURE() << "accepted: " << rows;
    } catch (const Error& e) {
      for (const std::string& part : parts)
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
            << "no \"" << part << "\" in: " << e.what();
    }
  }

  Tokenizer tokenizer = make_tokenizer();
  DataOptions options;
};

}  // namespace wick::data_test
