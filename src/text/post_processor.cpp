// SPDX-License-Identifier: Apache-2.0
#include "text/post_processor.h"

#include "text/bpe.h"
#include "text/component.h"

namespace wick {

namespace {

// Real templates surround a text with one or two tokens; a file's few bytes may ask for any number,
// since each use of a name stands for all of its ids.
constexpr size_t kMaxAdded = 4096;

int32_t read_id(const Json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{kMaxTokenId})
    fail(ErrorCode::kCorruptFile, where, ": expected a token id, got ", json_kind(value));
  return value.get<int32_t>();
}

}  // namespace

PostProcessor::PostProcessor(const Json& json, const std::string& where) { add(json, where, 0); }

void PostProcessor::add(const Json& json, const std::string& where, int depth) {
  check_component_depth(depth, where);
  std::string type = get_string(json, "type", where);
  if (type == "Sequence") {
    const Json& items = sequence_items(json, "processors", where);
    for (size_t i = 0; i < items.size(); ++i)
      add(items[i], item_path(where, "processors", i), depth + 1);
  } else if (type == "TemplateProcessing" || type == "BertProcessing" ||
             type == "RobertaProcessing") {
    // The library takes what a template has put together apart again, and for several texts.
    if (in_pieces_)
      fail(ErrorCode::kUnsupported, where, " is a ", type,
           " behind a template that adds special tokens; wick surrounds a text once: write all of "
           "them into one template");
    if (type == "TemplateProcessing")
      add_template(json, where);
    else
      add_pair(json, where);
  } else if (type != "ByteLevel") {  // that one only trims offsets, which wick never does
    unsupported_component(where, type,
                          "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel and "
                          "Sequence");
  }
}

void PostProcessor::add_template(const Json& json, const std::string& where) {
  const Json& items = sequence_items(json, "single", where);
  const Json* known = find_member(json, "special_tokens");
  std::vector<int32_t> before, after;
  int texts = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    std::string path = item_path(where, "single", i);
    if (find_member(items[i], "Sequence")) {
      ++texts;
      continue;
    }
    const Json* token = find_member(items[i], "SpecialToken");
    if (!token) fail(ErrorCode::kCorruptFile, path, ": expected \"Sequence\" or \"SpecialToken\"");
    std::string name = get_string(*token, "id", path + ".SpecialToken");
    const Json* entry = known ? find_member(*known, name) : nullptr;
    if (!entry)
      fail(ErrorCode::kCorruptFile, path, ": \"", name, "\" is not in ", where, ".special_tokens");
    std::string ids_path = cat(where, ".special_tokens[\"", name, "\"]");
    const Json& ids = sequence_items(*entry, "ids", ids_path);
    if (before.size() + after.size() + ids.size() > kMaxAdded)
      fail(ErrorCode::kCorruptFile, path, ": the template adds more than ", kMaxAdded,
           " special tokens to a text; is the file damaged?");
    for (const Json& id : ids) (texts ? after : before).push_back(read_id(id, ids_path + ".ids"));
  }
  if (texts != 1)
    fail(ErrorCode::kUnsupported, where, ".single holds the text ", texts,
         " times; wick does templates that hold it once");
  in_pieces_ = !before.empty() || !after.empty();
  surround(before, after);
}

void PostProcessor::add_pair(const Json& json, const std::string& where) {
  auto id_of = [&](const char* key) {
    const Json& pair = sequence_items(json, key, where);
    if (pair.size() != 2) fail(ErrorCode::kCorruptFile, where, ".", key, ": expected [token, id]");
    return read_id(pair[1], item_path(where, key, 1));
  };
  surround({id_of("cls")}, {id_of("sep")});
}

void PostProcessor::surround(const std::vector<int32_t>& before,
                             const std::vector<int32_t>& after) {
  before_.insert(before_.begin(), before.begin(), before.end());
  after_.insert(after_.end(), after.begin(), after.end());
}

}  // namespace wick
