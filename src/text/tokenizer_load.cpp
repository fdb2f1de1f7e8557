// SPDX-License-Identifier: Apache-2.0
// Reading a tokenizer's files.
#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "io/impostor.h"
#include "io/model_files.h"
#include "text/component.h"
#include "text/tokenizer_impl.h"

namespace wick {

namespace {

constexpr const char* kConfigName = "tokenizer_config.json";

template <typename Component>
Component read_component(const Json& tokenizer, const char* key, const std::string& where) {
  const Json* json = find_member(tokenizer, key);
  return json ? Component(*json, cat(where, ": ", key)) : Component();
}

const Json& model_member(const Json& tokenizer, const std::string& where) {
  const Json* model = find_member(tokenizer, "model");
  if (!model)
    fail(ErrorCode::kCorruptFile, where, ": there is no \"model\"; is it a tokenizer.json?");
  return *model;
}

AddedToken read_added_token(const Json& json, const std::string& where) {
  AddedToken token;
  token.content = get_string(json, "content", where);
  token.single_word = get_bool(json, "single_word", where, false);
  token.lstrip = get_bool(json, "lstrip", where, false);
  token.rstrip = get_bool(json, "rstrip", where, false);
  token.special = get_bool(json, "special", where, false);
  token.normalized = get_bool(json, "normalized", where, !token.special);
  return token;
}

// Collects the added tokens of tokenizer.json, then those of tokenizer_config.json. As in the
// library tokenizers one that the vocabulary lacks gets the next id behind it, whatever id its
// entry says. Only where the vocabulary has gaps, so that this would be another token's, its own
// counts, and so do those of the entries behind it.
class AddedTokenList {
 public:
  AddedTokenList(const BpeModel& model, int64_t id_limit)
      : model_(model), id_limit_(id_limit), next_id_(model.size()) {}

  // A content that is known keeps its id and takes the new flags; once special, it stays so.
  void add(AddedToken token, int64_t id, const std::string& where) {
    if (token.content.empty()) return;
    if (id < 0 || id > kMaxTokenId)
      fail(ErrorCode::kCorruptFile, where, ": the id of \"", token.content, "\" is ", id,
           ", expected 0 … ", kMaxTokenId);
    if (auto known = by_content_.find(token.content); known != by_content_.end()) {
      AddedToken& there = tokens_[known->second];
      token.id = there.id;
      token.special = token.special || there.special;
      there = std::move(token);
      return;
    }
    std::optional<int32_t> in_model = model_.find(token.content);
    own_ids_ = own_ids_ || (!in_model && model_.piece(static_cast<int32_t>(next_id_)));
    if (!in_model && !own_ids_) id = next_id_;
    token.id = in_model ? *in_model : static_cast<int32_t>(id);
    next_id_ = std::max(next_id_, int64_t{token.id} + 1);
    if (!in_model && id >= id_limit_) {
      if (std::find(beyond_.begin(), beyond_.end(), token.content) == beyond_.end())
        beyond_.push_back(token.content);
      return;
    }
    if (const std::string* other = model_.piece(token.id); other && !in_model)
      fail(ErrorCode::kCorruptFile, where, ": \"", token.content, "\" has the id ", id,
           ", which is that of \"", *other, "\" in the vocabulary");
    if (auto [other, fresh] = by_id_.emplace(token.id, tokens_.size()); !fresh)
      fail(ErrorCode::kCorruptFile, where, ": \"", token.content, "\" and \"",
           tokens_[other->second].content, "\" have the same id ", token.id);
    by_content_.emplace(token.content, tokens_.size());
    tokens_.push_back(std::move(token));
  }

  // A token that the config names, as transformers takes it: it is recognised in a text, also where
  // no list above has it. Of several names the last one's flags count.
  void add_named(AddedToken token, const std::string& where) {
    const int64_t id = model_.find(token.content).value_or(static_cast<int32_t>(next_id_));
    if (named_.contains(token.content) ||
        (!by_content_.contains(token.content) && !by_id_.contains(static_cast<int32_t>(id)))) {
      named_.insert(token.content);
      add(std::move(token), id, where);
    }
  }

  std::vector<AddedToken> take() { return std::move(tokens_); }
  std::vector<std::string> take_beyond() { return std::move(beyond_); }

 private:
  const BpeModel& model_;
  const int64_t id_limit_;
  int64_t next_id_;
  bool own_ids_ = false;  // the next one was another token's
  std::vector<AddedToken> tokens_;
  std::vector<std::string> beyond_;  // left out: their ids are not below the limit
  StringMap<size_t> by_content_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::set<std::string> named_;  // those of add_named
};

std::string config_beside(const std::string& tokenizer_file) {
  return std::filesystem::path(tokenizer_file).replace_filename(kConfigName).string();
}

// "…", {"content": "…"}; nothing for another kind of value.
std::optional<std::string> token_content(const Json* value) {
  if (value && value->is_object()) value = find_member(*value, "content");
  if (!value || !value->is_string()) return std::nullopt;
  return value->get<std::string>();
}

// The older name of a list extra_special_tokens, which counts before it.
constexpr const char* kAdditional = "additional_special_tokens";

// special_tokens_map.json belongs to files that are older than added_tokens_decoder. As in
// transformers it stands for what the config says, but for the list of further ones; beside newer
// ones it is not looked at.
Json with_special_map(Json config, const Json& special_map) {
  if (!special_map.is_object() || config.contains("added_tokens_decoder")) return config;
  if (config.is_null()) config = Json::object();
  if (!config.is_object()) return config;
  for (const auto& [key, value] : special_map.items())
    if (key != kAdditional || !config.contains(key)) config[key] = value;
  return config;
}

// As in transformers, every key that ends in _token names one, and so do the keys of an object
// extra_special_tokens, which version 5 saves as model_specific_special_tokens: a text, or an
// object with flags beside it. Under a name of the family's own
// only an object that says it is a token is one. Calls each(name, value), the usual names first.
template <typename Each>
void for_each_named(const Json& config, Each each) {
  static constexpr std::string_view kUsual[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                "pad_token", "cls_token", "mask_token"};
  if (!config.is_object()) return;
  for (std::string_view name : kUsual)
    if (const Json* value = find_member(config, name)) each(std::string(name), *value);
  for (const auto& [key, value] : config.items()) {
    const bool usual = std::find(std::begin(kUsual), std::end(kUsual), key) != std::end(kUsual);
    if (!usual && key.ends_with("_token") && (value.is_string() || find_member(value, "__type")))
      each(key, value);
  }
  for (const char* names : {"extra_special_tokens", "model_specific_special_tokens"})
    if (const Json* extra = find_member(config, names); extra && extra->is_object())
      for (const auto& [key, value] : extra->items()) each(key, value);
}

std::map<std::string, std::string> named_tokens(const Json& config) {
  std::map<std::string, std::string> out;
  for_each_named(config, [&](const std::string& name, const Json& value) {
    if (std::optional<std::string> content = token_content(&value)) out[name] = *content;
  });
  return out;
}

void add_named_tokens(const Json& config, const std::string& where, AddedTokenList& list) {
  auto add = [&](const Json& value, const std::string& path, bool special) {
    if (!token_content(&value)) return;
    AddedToken token;
    if (value.is_object())
      token = read_added_token(value, path);
    else
      token.content = value.get<std::string>();
    token.special = token.special || special || value.is_string();
    list.add_named(std::move(token), path);
  };
  for_each_named(config, [&](const std::string& name, const Json& value) {
    add(value, cat(config_beside(where), ": ", name), /*special=*/true);
  });
  const Json* further = find_member(config, "extra_special_tokens");
  const bool lists = further && further->is_array() && !further->empty();
  const char* key = lists ? "extra_special_tokens" : kAdditional;
  if (const Json* items = find_member(config, key); items && items->is_array())
    for (const Json& item : *items)
      add(item, cat(config_beside(where), ": ", key), /*special=*/false);
}

std::vector<AddedToken> read_added_tokens(const Json& tokenizer, const Json& config,
                                          const BpeModel& model, const std::string& where,
                                          int64_t id_limit, std::vector<std::string>& beyond) {
  AddedTokenList list(model, id_limit);
  // As in transformers: of the tokens that the config lists, or else of those of tokenizer.json,
  // the ones that it names (as eos_token, say) are special, whatever their own flag says.
  const bool config_lists = config.is_object() && config.contains("added_tokens_decoder");
  std::set<std::string> named;
  for (const auto& [name, content] : named_tokens(config)) named.insert(content);
  auto read = [&](const Json& item, const std::string& path, bool by_name) {
    AddedToken token = read_added_token(item, path);
    token.special = token.special || (by_name && named.contains(token.content));
    return token;
  };
  if (const Json* items = find_member(tokenizer, "added_tokens")) {
    if (!items->is_array())
      fail(ErrorCode::kCorruptFile, where, ": added_tokens: expected an array, got ",
           json_kind(*items));
    for (size_t i = 0; i < items->size(); ++i) {
      std::string path = cat(where, ": added_tokens[", i, "]");
      list.add(read((*items)[i], path, !config_lists), get_int((*items)[i], "id", path), path);
    }
  }
  if (const Json* items = find_member(config, "added_tokens_decoder");
      items && items->is_object()) {
    std::map<int64_t, std::pair<std::string, const Json*>> by_id;
    for (const auto& [key, value] : items->items()) {
      std::string path = cat(config_beside(where), ": added_tokens_decoder[\"", key, "\"]");
      int64_t id = -1;
      auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size())
        fail(ErrorCode::kCorruptFile, path, ": the key is not a token id");
      by_id[id] = {path, &value};
    }
    for (const auto& [id, entry] : by_id)
      list.add(read(*entry.second, entry.first, /*by_name=*/true), id, entry.first);
  }
  add_named_tokens(config, where, list);
  beyond = list.take_beyond();
  return list.take();
}

// "chat_template" of a config: a text, which is the default, a list of {"name", "template"}, or an
// object of templates by name.
std::string read_chat_template(const Json& config, const std::string& where,
                               std::string_view name = "default") {
  const Json* source = find_member(config, "chat_template");
  if (!source) return {};
  if (source->is_string()) return name == "default" ? source->get<std::string>() : std::string();
  if (source->is_object())
    return get_string(*source, name, cat(where, ": chat_template"), std::string());
  if (!source->is_array())
    fail(ErrorCode::kCorruptFile, where, ": chat_template is ", json_kind(*source),
         ", expected a string or a list of {name, template}");
  for (size_t i = 0; i < source->size(); ++i) {
    std::string path = cat(where, ": chat_template[", i, "]");
    if (get_string((*source)[i], "name", path) == name)
      return get_string((*source)[i], "template", path);
  }
  return {};
}

constexpr std::string_view kToolUse = "tool_use";

std::string read_template_file(const std::filesystem::path& path) {
  constexpr size_t kMaxTemplate = size_t{1} << 24;
  std::string source = read_file(path, kMaxTemplate);
  if (std::string_view hint = impostor_hint(source); !hint.empty())
    fail(ErrorCode::kCorruptFile, path.string(), ": ", hint);
  return source;
}

Json read_json_if_present(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? read_json(path) : Json();
}

}  // namespace

Tokenizer::Impl::Impl(const Json& tokenizer, const Json& config, const std::string& where,
                      int64_t id_limit)
    : model(model_member(tokenizer, where), where + ": model"),
      normalizer(read_component<Normalizer>(tokenizer, "normalizer", where)),
      pre_tokenizer(read_component<PreTokenizer>(tokenizer, "pre_tokenizer", where)),
      post_processor(read_component<PostProcessor>(tokenizer, "post_processor", where)),
      decoder(read_component<Decoder>(tokenizer, "decoder", where)),
      added(read_added_tokens(tokenizer, config, model, where, id_limit, beyond), normalizer),
      special_tokens(named_tokens(config)) {
  vocab_size = model.id_limit();
  for (const AddedToken& token : added.all())
    vocab_size = std::max<int64_t>(vocab_size, int64_t{token.id} + 1);
  for (const auto* ids : {&post_processor.before(), &post_processor.after()})
    for (int32_t id : *ids) vocab_size = std::max<int64_t>(vocab_size, int64_t{id} + 1);
  chat_template = read_chat_template(config, config_beside(where));
  tool_template = read_chat_template(config, config_beside(where), kToolUse);
}

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json,
                               std::string_view tokenizer_config_json, std::string_view where) {
  Json config =
      tokenizer_config_json.empty() ? Json() : parse_json(tokenizer_config_json, kConfigName);
  return Tokenizer(
      std::make_unique<const Impl>(parse_json(tokenizer_json, where), config, std::string(where)));
}

Tokenizer Tokenizer::load(const std::filesystem::path& folder, int64_t id_limit) {
  std::filesystem::path file = folder / "tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    fail(ErrorCode::kNotFound, folder.string(), ": no tokenizer.json; is the download complete?",
         std::filesystem::exists(folder / "tokenizer.model", ignored)
             ? " There is a tokenizer.model, which wick does not read: AutoTokenizer of "
               "transformers loads it, and its save_pretrained writes tokenizer.json"
             : "");
  refuse_special_files(folder);
  Json tokenizer = read_json(file);
  Json config = with_special_map(read_json_if_present(folder / kConfigName),
                                 read_json_if_present(folder / "special_tokens_map.json"));
  auto impl = std::make_unique<Impl>(tokenizer, config, file.string(), id_limit);
  // Files of templates stand for those of the config, all of them.
  if (auto path = folder / "chat_template.jinja"; std::filesystem::exists(path, ignored)) {
    impl->chat_template = read_template_file(path);
    impl->tool_template.clear();
  } else if (impl->chat_template.empty()) {
    std::filesystem::path other = folder / "chat_template.json";
    impl->chat_template = read_chat_template(read_json_if_present(other), other.string());
  }
  const std::filesystem::path others = folder / "additional_chat_templates";
  refuse_special_files(others);
  if (auto path = others / cat(kToolUse, ".jinja"); std::filesystem::exists(path, ignored))
    impl->tool_template = read_template_file(path);
  return Tokenizer(std::move(impl));
}

}  // namespace wick
