// SPDX-License-Identifier: Apache-2.0
// "post_processor" of a tokenizer.json, for single texts: the ids that it sets before and after.
// TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel (adds nothing), and sequences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/json.h"

namespace wick {

class PostProcessor {
 public:
  PostProcessor() = default;  // adds nothing
  // Throws: kCorruptFile, kUnsupported naming the key.
  PostProcessor(const Json& json, const std::string& where);

  const std::vector<int32_t>& before() const { return before_; }
  const std::vector<int32_t>& after() const { return after_; }

 private:
  void add(const Json& json, const std::string& where, int depth);
  void add_template(const Json& json, const std::string& where);
  void add_pair(const Json& json, const std::string& where);
  void surround(const std::vector<int32_t>& before, const std::vector<int32_t>& after);

  std::vector<int32_t> before_, after_;
  bool in_pieces_ = false;  // a template has added tokens
};

}  // namespace wick
