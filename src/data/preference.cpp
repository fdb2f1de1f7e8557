// SPDX-License-Identifier: Apache-2.0
#include "data/preference.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace wick {
namespace {

Json* member(Json& object, std::string_view key) {
  return const_cast<Json*>(find_member(object, key));
}

// What both lists begin with. The last message of each is an answer, never prompt.
size_t common_messages(const Json& a, const Json& b) {
  const size_t most = std::min(a.size(), b.size());
  size_t n = 0;
  while (n + 1 < most && a[n] == b[n]) ++n;
  return n;
}

bool begins_with(const Json& list, const Json& prompt) {
  if (!list.is_array() || list.size() <= prompt.size()) return false;
  for (size_t i = 0; i < prompt.size(); ++i)
    if (list[i] != prompt[i]) return false;
  return true;
}

// Whether a list of messages begins with a question, and so holds a prompt.
bool asks_first(const Json& list) {
  for (const Json& message : list)
    if (const Json* role = find_member(message, "role"); role && *role != "system")
      return *role == "user";
  return false;
}

void drop_front(Json& list, size_t count) {
  list.erase(list.begin(), list.begin() + static_cast<ptrdiff_t>(count));
}

// A message alone is a list of one.
void make_list(Json& answer) {
  if (answer.is_object()) answer = Json::array({std::move(answer)});
}

// The prompt of a pair, which is taken off both answers where they hold it.
Json take_prompt(Json* given, Json& chosen, Json& rejected, const DataOptions& options) {
  make_list(chosen);
  make_list(rejected);
  const bool lists = chosen.is_array() && rejected.is_array();
  if (given != nullptr && given->is_array()) {
    if (begins_with(chosen, *given) && begins_with(rejected, *given)) {
      drop_front(chosen, given->size());
      drop_front(rejected, given->size());
    }
    return std::move(*given);
  }
  // A prompt that stands apart is the question to answers that begin alike.
  const bool hold = lists && (given == nullptr || asks_first(chosen));
  const size_t common = hold ? common_messages(chosen, rejected) : 0;
  if (common > 0) {
    Json prompt = Json::array();
    for (size_t i = 0; i < common; ++i) prompt.push_back(chosen[i]);
    drop_front(chosen, common);
    drop_front(rejected, common);
    return prompt;
  }
  if (given == nullptr)
    fail(ErrorCode::kCorruptFile, "the row has no \"", options.prompt_key,
         "\", and \"chosen\" and \"rejected\" are not lists of messages that begin alike");
  return std::move(*given);
}

bool label_of(const Json& label) {
  if (label.is_boolean()) return label.get<bool>();
  if (label.is_number_integer() && (label == 0 || label == 1)) return label == 1;
  if (label.is_string()) {
    std::string text = label.get<std::string>();
    for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    if (text == "true" || text == "1") return true;
    if (text == "false" || text == "0") return false;
  }
  fail(ErrorCode::kCorruptFile, "\"label\" is ", label.dump(), ", expected true or false");
}

class Reader {
 public:
  Reader(const RowEncoder& encoder, const DataOptions& options, std::vector<DataIssue>& issues)
      : encoder_(encoder), options_(options), issues_(issues) {}

  Example sequence(Json prompt, Json answer, const Json& tools, bool keep_prompt,
                   const char* which) {
    Json row = Json::object();
    row[options_.prompt_key] = std::move(prompt);
    row[options_.completion_key] = std::move(answer);
    if (!tools.is_null()) row["tools"] = tools;
    std::vector<DataIssue> found;
    Example example = encoder_.encode(std::move(row), keep_prompt, found);
    for (DataIssue& issue : found) {
      // What is wrong with the prompt they share is said once.
      const bool said = std::any_of(issues_.begin(), issues_.end(), [&](const DataIssue& other) {
        return other.what == issue.what;
      });
      if (!said) issues_.push_back(std::move(issue));
    }
    const auto keep = static_cast<size_t>(options_.max_seq_length);
    if (example.ids.size() > keep) {
      issues_.push_back({DataIssueKind::kCut, "", 0,
                         cat("the ", which, " sequence has ", example.full_length,
                             " tokens and is cut to max_seq_length = ", options_.max_seq_length)});
      example.ids.resize(keep);
      example.trained.resize(keep);
    }
    std::vector<Token>().swap(example.tokens);
    if (!options_.keep_text) example.text.clear();
    return example;
  }

 private:
  const RowEncoder& encoder_;
  const DataOptions& options_;
  std::vector<DataIssue>& issues_;
};

bool has_trained(const Example& e) {
  return std::any_of(e.trained.begin(), e.trained.end(), [](uint8_t t) { return t != 0; });
}

Example labelled(Reader& reader, Json& row, Json& label, const Json& tools, bool keep_prompt,
                 const DataOptions& options) {
  Json *prompt = member(row, options.prompt_key), *answer = member(row, options.completion_key);
  if (options.pairs != PairRows::kLabels)
    fail(ErrorCode::kCorruptFile,
         "a row with \"label\" has one answer, and this loss compares two: wanted are \"chosen\" "
         "and \"rejected\"; use --loss kto");
  if (prompt == nullptr || answer == nullptr)
    fail(ErrorCode::kCorruptFile, "a row with \"label\" wants \"", options.prompt_key, "\" and \"",
         options.completion_key, '"');
  const bool wanted = label_of(label);
  Example example = reader.sequence(std::move(*prompt), std::move(*answer), tools, keep_prompt,
                                    wanted ? "desirable" : "undesirable");
  example.undesirable = !wanted;
  return example;
}

}  // namespace

bool is_pair(const Json& row) {
  return row.is_object() && find_member(row, "chosen") != nullptr &&
         find_member(row, "rejected") != nullptr;
}

Example encode_preference(const RowEncoder& encoder, const DataOptions& options, Json&& row,
                          bool keep_prompt, std::vector<DataIssue>& issues) {
  if (!row.is_object())
    fail(ErrorCode::kCorruptFile, "the row is ", json_kind(row), ", expected an object");
  const Json* given_tools = find_member(row, "tools");
  const Json tools = given_tools ? *given_tools : Json(nullptr);
  Reader reader(encoder, options, issues);
  Json *chosen = member(row, "chosen"), *rejected = member(row, "rejected");
  if (Json* label = member(row, "label"); label != nullptr && chosen == nullptr)
    return labelled(reader, row, *label, tools, keep_prompt, options);
  if (chosen == nullptr && rejected == nullptr)
    fail(ErrorCode::kInvalidArgument,
         "the row has no \"chosen\" and \"rejected\"; a preference wants both, and a \"",
         options.prompt_key, '"',
         member(row, options.completion_key)
             ? cat(" (--loss kto also takes a \"label\" beside the \"", options.completion_key,
                   "\")")
             : "",
         "; leave --loss out to learn the rows as they are");
  if (chosen == nullptr || rejected == nullptr)
    fail(ErrorCode::kCorruptFile, "the row has no \"", chosen ? "rejected" : "chosen",
         "\"; a preference wants both answers, and a \"", options.prompt_key, '"');
  Json* given = member(row, options.prompt_key);
  if (given == nullptr) given = member(row, options.messages_key);
  Json prompt = take_prompt(given, *chosen, *rejected, options);
  Example pair = reader.sequence(prompt, std::move(*chosen), tools, keep_prompt, "chosen");
  const Example second =
      reader.sequence(std::move(prompt), std::move(*rejected), tools, false, "rejected");
  if (!has_trained(pair) || !has_trained(second)) {
    // Of a pair with one answer nothing is left to compare: without a trained token the row is
    // left out.
    std::fill(pair.trained.begin(), pair.trained.end(), uint8_t{0});
    return pair;
  }
  if (options.pairs == PairRows::kWithPrompt)
    for (size_t i = 1; i < pair.trained.size(); ++i)
      if (pair.trained[i] == 0) pair.trained[i] = kLikelihoodOnly;
  pair.second = static_cast<int64_t>(pair.ids.size());
  pair.ids.insert(pair.ids.end(), second.ids.begin(), second.ids.end());
  pair.trained.insert(pair.trained.end(), second.trained.begin(), second.trained.end());
  pair.full_length += second.full_length;
  return pair;
}

size_t SequenceView::prompt_tokens() const {
  size_t n = 0;
  while (n < trained.size() && (trained[n] & 1) == 0) ++n;
  return n;
}

std::vector<SequenceView> sequences_of(const Example& e) {
  const std::span<const int32_t> ids = e.ids;
  const std::span<const uint8_t> trained = e.trained;
  if (e.second == 0) return {{ids, trained, e.undesirable}};
  const auto at = static_cast<size_t>(e.second);
  return {{ids.first(at), trained.first(at), false}, {ids.subspan(at), trained.subspan(at), true}};
}

ExampleSet mismatched(const ExampleSet& set, std::span<const int64_t> rows, int64_t max_tokens) {
  std::vector<SequenceView> all;
  for (bool rejected : {false, true})
    for (int64_t row : rows)
      for (const SequenceView& s : sequences_of(set[row]))
        if (s.rejected == rejected) all.push_back(s);
  std::vector<Example> made;
  for (size_t i = 0; i < all.size(); ++i) {
    const SequenceView &prompt = all[i], &answer = all[(i + all.size() - 1) % all.size()];
    Example e;
    const size_t before = prompt.prompt_tokens(), from = answer.prompt_tokens();
    e.ids.assign(prompt.ids.begin(), prompt.ids.begin() + static_cast<ptrdiff_t>(before));
    e.trained.assign(before, 0);
    e.ids.insert(e.ids.end(), answer.ids.begin() + static_cast<ptrdiff_t>(from), answer.ids.end());
    for (size_t j = from; j < answer.trained.size(); ++j)
      e.trained.push_back(answer.trained[j] & 1);
    const auto length = std::min(e.ids.size(), static_cast<size_t>(max_tokens));
    e.ids.resize(length);
    e.trained.resize(length);
    if (has_trained(e)) made.push_back(std::move(e));
  }
  return ExampleSet::from_examples(std::move(made), set.file());
}

}  // namespace wick
