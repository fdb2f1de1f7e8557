// SPDX-License-Identifier: Apache-2.0
#include "data/row.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "data/messages.h"

namespace wick {
namespace {

bool only_white_space(std::string_view text, size_t begin, size_t end) {
  return begin >= end ||
         text.substr(begin, end - begin).find_first_not_of(" \t\n\v\f\r") == std::string::npos;
}

// Indices of a run of tokens.
struct TokenRun {
  size_t first = 0, last = 0;  // [first, last)
};

// The tokens that have a byte in common with [begin, end).
// Requires: no token is empty.
TokenRun tokens_of(const std::vector<Token>& tokens, size_t begin, size_t end) {
  auto first = std::partition_point(tokens.begin(), tokens.end(),
                                    [&](const Token& t) { return t.end <= begin; });
  auto last =
      std::partition_point(first, tokens.end(), [&](const Token& t) { return t.begin < end; });
  return {static_cast<size_t>(first - tokens.begin()), static_cast<size_t>(last - tokens.begin())};
}

// Whether the names of the functions that a message calls are in its turn. Templates without tools
// leave them out and would teach empty answers.
bool writes_calls(const RenderedChat& chat, const AssistantSpan& span, const Json& message) {
  const Json* calls = find_member(message, "tool_calls");
  if (calls == nullptr || span.message_index >= chat.messages.size()) return true;
  TemplateSpan turn = chat.messages[span.message_index];
  if (turn.begin == turn.end) turn = {span.begin, span.end};
  std::string_view text = std::string_view(chat.text).substr(turn.begin, turn.end - turn.begin);
  for (const Json& call : *calls) {
    const Json* function = find_member(call, "function");
    const Json* name = find_member(function != nullptr ? *function : call, "name");
    if (name != nullptr && name->is_string() &&
        text.find(name->get_ref<const std::string&>()) == std::string_view::npos)
      return false;
  }
  return true;
}

// Whether a template says the same without the row's tools. Their names are no sign: the calls in
// the messages have them too.
bool leaves_tools_out(const ChatTemplate& chat_template, const TemplateInput& input,
                      const std::string& text) {
  if (input.tools.is_null()) return false;
  TemplateInput without = input;
  without.tools = nullptr;
  try {
    return chat_template.render(without).text == text;
  } catch (const Error&) {
    return false;  // it asks for them
  }
}

Example from_tokens(std::vector<Token>&& tokens, RowFormat format) {
  Example example;
  example.format = format;
  example.ids.reserve(tokens.size());
  for (const Token& t : tokens) example.ids.push_back(t.id);
  example.trained.assign(tokens.size(), 0);
  example.full_length = static_cast<int64_t>(tokens.size());
  example.tokens = std::move(tokens);
  return example;
}

bool has_words_of(std::string_view text, const Json& member) {
  return !member.is_string() || has_words(text, member.get_ref<const std::string&>());
}

// As chat APIs mark an assistant turn that is not to be learned.
bool has_no_weight(const Json& message) {
  const Json* weight = find_member(message, "weight");
  return weight != nullptr && weight->is_number() && weight->get<double>() == 0;
}

// The words of a message, without what is no text.
std::string words_of(const Json& message) {
  const Json* content = find_member(message, "content");
  return content != nullptr && content->is_string() ? content->get<std::string>() : "";
}

// Of an answer, without the thoughts before it, which templates may take off.
std::string_view after_thoughts(std::string_view answer) {
  constexpr std::string_view kEnd = "</think>";
  const size_t end = answer.rfind(kEnd);
  return end == std::string_view::npos ? answer : answer.substr(end + kEnd.size());
}

std::string plain_prompt(const RowContent& content) {
  if (!content.is_chat) return content.text.substr(0, content.trained_from);
  size_t end = content.messages.size();
  while (end > 0 && content.messages[end - 1].at("role") != "assistant") --end;
  std::string turns, last;
  size_t count = 0;
  for (size_t i = 0; i + 1 < end; ++i) {
    const std::string& role = content.messages[i].at("role").get_ref<const std::string&>();
    if (role == "system" || role == "developer") continue;
    last = words_of(content.messages[i]);
    turns += cat(count++ == 0 ? "" : "\n", role, ": ", last);
  }
  return count == 1 ? last : turns;
}

void train_all(Example& example) {
  std::fill(example.trained.begin(), example.trained.end(), uint8_t{1});
}

}  // namespace

std::string unwritten_thoughts(const Json& messages, std::string_view text) {
  if (messages.empty()) return {};
  for (const char* key : {"reasoning_content", "reasoning", "thinking"})
    if (const Json* thought = find_member(messages.back(), key);
        thought != nullptr && !has_words_of(text, *thought))
      return key;
  // In the answer itself, where templates of models that think take them off.
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const Json* content = find_member(messages.back(), "content");
  if (content == nullptr || !content->is_string()) return {};
  const std::string& answer = content->get_ref<const std::string&>();
  const size_t end = answer.find(kEnd);
  if (end == std::string::npos) return {};
  const size_t begin = std::min(answer.find(kBegin), end);
  const size_t from = begin < end ? begin + kBegin.size() : 0;
  return has_words(text, answer.substr(from, end - from)) ? "" : "content up to </think>";
}

std::optional<size_t> unwritten_system(const Json& messages, std::string_view text) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json* role = find_member(messages[i], "role");
    const Json* content = find_member(messages[i], "content");
    if (role != nullptr && (*role == "system" || *role == "developer") && content != nullptr &&
        !has_words_of(text, *content))
      return i;
  }
  return std::nullopt;
}

RowEncoder::RowEncoder(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                       const DataOptions& options)
    : tokenizer_(tokenizer), template_(chat_template), options_(options) {
  if (options.max_seq_length < 2)
    fail(ErrorCode::kInvalidArgument, "max_seq_length is ", options.max_seq_length,
         ", expected at least 2: one token to read and one to predict");
  if (!options.chat_template_config.is_null() && !options.chat_template_config.is_object())
    fail(ErrorCode::kInvalidArgument, "chat_template_config is ",
         json_kind(options.chat_template_config), ", expected an object");
}

bool RowEncoder::is_stop(int32_t id) const {
  return tokenizer_.is_special(id) || tokenizer_.eos_id() == id;
}

Example RowEncoder::encode(Json&& row, bool keep_prompt, std::vector<DataIssue>& issues) const {
  RowContent content = read(std::move(row));
  std::string prompt = keep_prompt ? plain_prompt(content) : "";
  Example example =
      content.is_chat ? encode_chat(std::move(content), issues) : encode_text(content, issues);
  if (!example.trained.empty()) example.trained[0] = 0;
  example.prompt = std::move(prompt);
  return example;
}

Example RowEncoder::encode_text(const RowContent& content, std::vector<DataIssue>& issues) const {
  std::vector<Token> tokens = tokenizer_.encode(content.text, true);
  auto size = static_cast<uint32_t>(content.text.size());
  std::optional<int32_t> eos = tokenizer_.eos_id();
  if (eos && (tokens.empty() || tokens.back().id != *eos)) tokens.push_back({*eos, size, size});

  Example example = from_tokens(std::move(tokens), content.format);
  if (content.format == RowFormat::kText || !options_.mask_prompt) {
    train_all(example);
  } else {
    for (size_t i = 0; i < example.tokens.size(); ++i) {
      const Token& t = example.tokens[i];
      example.trained[i] = t.begin < t.end && t.end > content.trained_from;
    }
    if (eos) example.trained.back() = 1;
  }
  if (!eos)
    issues.push_back({DataIssueKind::kNoStopToken, "", kWholeFile,
                      "the tokenizer names no eos token, so rows of text end without one and do "
                      "not teach the model to stop"});
  if (options_.keep_text) example.text = content.text;
  return example;
}

Example RowEncoder::encode_chat(RowContent&& content, std::vector<DataIssue>& issues) const {
  TemplateInput input;
  input.messages = std::move(content.messages);
  input.tools = std::move(content.tools);
  input.extra = options_.chat_template_config;
  input.special_tokens = tokenizer_.special_tokens();
  input.date = options_.date;
  RenderedChat chat = render_messages(*template_, input);
  for (const std::string& token : tokenizer_.tokens_beyond())
    if (chat.text.find(token) != std::string::npos)
      issues.push_back({DataIssueKind::kOther, "", kWholeFile,
                        cat("rows have ", token,
                            ", a token of the tokenizer that the model has no row for: its id is "
                            "beyond config.json's vocab_size, so it is read as plain text")});
  if (leaves_tools_out(*template_, input, chat.text))
    issues.push_back({DataIssueKind::kOther, "", 0,
                      "the chat template does not write the row's tools, so the model does not see "
                      "what it may call"});
  if (unwritten_system(input.messages, chat.text))
    issues.push_back({DataIssueKind::kDropped, "", kWholeFile,
                      cat("the chat template leaves system messages out",
                          options_.system_prompt.empty() ? "" : ", that of --system-prompt too")});
  if (const std::string key = unwritten_thoughts(input.messages, chat.text); !key.empty())
    issues.push_back(
        {DataIssueKind::kDropped, "", kWholeFile,
         cat("the chat template does not write an answer's ", key, ", so it is not learned")});
  Example example = from_tokens(tokenizer_.encode(chat.text, false), content.format);
  if (options_.keep_text) example.text = chat.text;
  if (!options_.mask_prompt) {
    train_all(example);
    return example;
  }

  std::vector<AssistantSpan> spans = assistant_spans(*template_, input);
  for (size_t s = 0; s < spans.size(); ++s) {
    const AssistantSpan& span = spans[s];
    if (span.message_index < content.first_trained_message) continue;
    if (has_no_weight(input.messages[span.message_index])) continue;
    if (!writes_calls(chat, span, input.messages[span.message_index]))
      issues.push_back({DataIssueKind::kOther, "", 0,
                        cat("the chat template does not write the tool calls of messages[",
                            span.message_index, "], so they are not learned")});
    if (!has_words(chat.text, after_thoughts(words_of(input.messages[span.message_index]))))
      issues.push_back({DataIssueKind::kOther, "", 0,
                        cat("the chat template does not write the content of messages[",
                            span.message_index, "], so it is not learned")});
    auto [first, last] = tokens_of(example.tokens, span.begin, span.end);
    bool turn_ends = s + 1 == spans.size() || spans[s + 1].message_index != span.message_index;
    if (turn_ends) {
      std::optional<size_t> stop = stop_of_turn(chat, example.tokens, span, first, last);
      if (!stop)
        issues.push_back(
            {DataIssueKind::kNoStopToken, "", 0,
             cat("the chat template writes no stop token (a special token) after messages[",
                 span.message_index, "], so the model does not learn to end that turn")});
      else
        last = *stop + 1;
    }
    std::fill(example.trained.begin() + static_cast<std::ptrdiff_t>(first),
              example.trained.begin() + static_cast<std::ptrdiff_t>(last), uint8_t{1});
  }
  return example;
}

std::optional<size_t> RowEncoder::stop_of_turn(const RenderedChat& chat,
                                               const std::vector<Token>& tokens,
                                               const AssistantSpan& span, size_t first,
                                               size_t last) const {
  size_t i = last;
  while (i > first && !is_stop(tokens[i - 1].id)) --i;
  if (i > first && only_white_space(chat.text, tokens[i - 1].end, span.end)) return i - 1;
  // A {% generation %} block may end before the stop token. What follows it is this turn's only
  // while the template is handling the message, lest the header of the next one is taken for it.
  if (last < tokens.size() && is_stop(tokens[last].id) && tokens[last].begin == span.end &&
      span.message_index < chat.messages.size() &&
      tokens[last].end <= chat.messages[span.message_index].end)
    return last;
  return std::nullopt;
}

}  // namespace wick
