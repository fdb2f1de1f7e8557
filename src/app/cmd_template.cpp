// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "app/options.h"
#include "app/terminal.h"
#include "app/tokenizer_of.h"
#include "app/verbs.h"
#include "base/check.h"
#include "base/file.h"
#include "text/chat_template.h"

namespace wick {

namespace {

struct Flags {
  std::string model, messages, source, tools, bos, eos, date, config;
  bool add_generation_prompt = false, json = false;
};

constexpr size_t kLargestFile = size_t{64} << 20;

Json read_array(const std::string& path, const char* what) {
  Json value = path == "-" ? parse_json(read_standard_input(), "standard input")
                           : read_json(path, kLargestFile);
  // {"messages": […], "tools": […]} is one row of a data set.
  if (const Json* member = find_member(value, what)) value = *member;
  if (!value.is_array())
    fail(ErrorCode::kInvalidArgument, path, " holds ", json_kind(value), ", wanted a list of ",
         what);
  return value;
}

int run(const Args& args, const Flags& flags) {
  args.require({"messages"});
  TemplateInput input;
  input.messages = read_array(flags.messages, "messages");
  if (!flags.tools.empty()) input.tools = read_array(flags.tools, "tools");
  if (!flags.config.empty()) input.extra = parse_json(flags.config, "--chat-template-config");
  input.add_generation_prompt = flags.add_generation_prompt;
  if (!flags.date.empty()) input.date = flags.date;

  std::string source, where;
  if (!flags.source.empty()) {
    source = read_file(flags.source, kLargestFile);
    where = flags.source;
  }
  // A template of its own needs no model; one that is named as well gives its special tokens.
  if (flags.source.empty() || args.given("model")) {
    const std::shared_ptr<const Tokenizer> tokenizer = tokenizer_of(flags.model);
    if (flags.source.empty()) {
      source = tokenizer->chat_template_source(/*with_tools=*/!input.tools.is_null());
      where = "chat_template";
      if (source.empty())
        fail(ErrorCode::kNotFound, flags.model,
             " has no chat template; give one with --template FILE");
    }
    input.special_tokens = tokenizer->special_tokens();
  }
  if (args.given("bos")) input.special_tokens["bos_token"] = flags.bos;
  if (args.given("eos")) input.special_tokens["eos_token"] = flags.eos;

  ChatTemplate chat(std::move(source), where);
  std::string text = chat.render(input).text;
  if (flags.json) text = json_line(Json{{"text", text}}) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kDone;
}

}  // namespace

std::function<int()> declare_template(Args& args) {
  auto flags = std::make_shared<Flags>();
  args.summary = "messages to prompt text, as a model reads it";
  args.details =
      "Prints the rendered text and nothing else: no line break is added. With --template no "
      "model is needed.";
  args.json = "One object: text.";
  args.examples = {
      {"wick template --messages chat.json --add-generation-prompt",
       "what the small model inside wick would read"},
      {"wick template --template chat_template.jinja --messages chat.json --bos \"<s>\"",
       "a template by itself"},
  };
  args.group("Template");
  args.text("--messages", flags->messages, "FILE.json",
            "A list of {\"role\", \"content\"}; - reads standard input.")
      .path();
  args.text("--template", flags->source, "FILE", "A Jinja chat template.")
      .shown("the model's")
      .path();
  args.flag("--add-generation-prompt", flags->add_generation_prompt,
            "End with the header of the next assistant turn.");
  args.text("--tools", flags->tools, "FILE.json", "A list of tool schemas.").path();
  args.text("--bos", flags->bos, "TEXT", "The beginning-of-text token.").shown("the model's");
  args.text("--eos", flags->eos, "TEXT", "The end-of-text token.").shown("the model's");
  args.text("--date", flags->date, "2026-01-02", "The day that the template takes for today.")
      .shown("today");
  args.object("--chat-template-config", flags->config, "JSON",
              "Further variables of the chat template, such as '{\"enable_thinking\": false}'.");
  args.group("Model");
  args.text("--model", flags->model, "FOLDER", "Whose chat template and special tokens.")
      .shown("the small model inside wick")
      .path();
  args.group("General");
  args.flag("--json", flags->json, "The text as a JSON object.");
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
