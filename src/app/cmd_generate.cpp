// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>

#include "app/format.h"
#include "app/generation_view.h"
#include "app/options.h"
#include "app/prompt_file.h"
#include "app/signals.h"
#include "app/terminal.h"
#include "app/verbs.h"
#include "base/check.h"
#include "text/chat_template.h"

namespace wick {

namespace {

struct Flags {
  ModelFlags model;
  DeviceFlags device;
  SamplingFlags sampling;
  ChatFlags chat;
  OutputFlags output;
  std::string prompt, prompts, prefill;
  bool ignore_chat_template = false;
};

// A prompt as the model reads it.
struct Prepared {
  std::string text;
  bool add_special = true;   // a template writes its own special tokens
  bool lost_system = false;  // the template did not write --system-prompt
};

// As rows are trained: a developer's message is one, wherever it stands.
bool has_system_message(const Json& messages) {
  return std::any_of(messages.begin(), messages.end(), [](const Json& message) {
    const Json* role = find_member(message, "role");
    return role && (*role == "system" || *role == "developer");
  });
}

Prepared prepare(const Model& model, const Flags& flags, const Prompt& prompt) {
  Prepared result;
  bool templated = prompt.kind != Prompt::Kind::kText && !flags.ignore_chat_template &&
                   model.has_chat_template();
  if (prompt.kind == Prompt::Kind::kMessages && !templated)
    fail(ErrorCode::kInvalidArgument, prompt.where, ": messages need a chat template, and ",
         flags.ignore_chat_template ? "--ignore-chat-template is given" : "the model has none");
  if (templated) {
    Json messages = prompt.kind == Prompt::Kind::kMessages
                        ? prompt.messages
                        : Json::array({{{"role", "user"}, {"content", prompt.text}}});
    const bool adds_system = !flags.chat.system_prompt.empty() && !has_system_message(messages);
    if (adds_system)
      messages.insert(messages.begin(),
                      Json{{"role", "system"}, {"content", flags.chat.system_prompt}});
    ChatOptions options;
    options.template_config_json = flags.chat.chat_template_config;
    options.date = flags.chat.date;
    if (prompt.tools.is_array()) options.tools_json = dump_json(prompt.tools);
    result.text = model.render_chat_json(dump_json(messages), options);
    result.lost_system = adds_system && !has_words(result.text, flags.chat.system_prompt);
    result.add_special = false;
  } else {
    if (!flags.chat.system_prompt.empty())
      throw UsageError("--system-prompt needs a chat template, and none is in use");
    if (!flags.chat.chat_template_config.empty())
      throw UsageError("--chat-template-config needs a chat template, and none is in use");
    result.text = prompt.text;
  }
  result.text += flags.prefill;
  return result;
}

void warn_of(const Prepared& prepared, const Output& out) {
  if (prepared.lost_system && !out.quiet())
    std::fputs("warning: the chat template leaves --system-prompt out\n", stderr);
}

int run_one(Model& model, const Flags& flags, const GenerateOptions& options, Output& out) {
  Prompt prompt;
  prompt.where = "--prompt";
  if (flags.prompt == "-") {
    prompt.text = read_standard_input();
  } else {
    // As in mlx-lm: a shell writes line breaks and tabs as two characters.
    for (size_t i = 0; i < flags.prompt.size(); ++i) {
      bool escape = flags.prompt[i] == '\\' && i + 1 < flags.prompt.size();
      if (escape && flags.prompt[i + 1] == 'n')
        prompt.text += '\n', ++i;
      else if (escape && flags.prompt[i + 1] == 't')
        prompt.text += '\t', ++i;
      else
        prompt.text += flags.prompt[i];
    }
  }
  Prepared prepared = prepare(model, flags, prompt);
  warn_of(prepared, out);
  Generator generator(model);
  StopSignal stop;
  GenerateOptions heard = options;
  heard.should_stop = [&] { return stop.asked(); };
  auto show = [&](const std::string& piece) {
    if (!out.json()) write_answer(piece);
    return true;
  };
  if (!flags.prefill.empty()) show(flags.prefill);
  Generation result = generator.complete(prepared.text, heard, show, prepared.add_special);
  if (!out.json()) std::fputc('\n', stdout);
  std::fflush(stdout);
  result.text.insert(0, flags.prefill);
  out.event(generation_json(result));
  if (!out.quiet()) std::fprintf(stderr, "%s\n", generation_statistics(result).c_str());
  return stop.asked() ? kInterrupted : kDone;
}

// Of many prompts one that cannot be answered is named, before any is.
Prepared prepare_checked(const Model& model, const Generator& generator, const Flags& flags,
                         const Prompt& prompt) {
  Prepared prepared;
  try {
    prepared = prepare(model, flags, prompt);
  } catch (const Error& e) {
    if (std::string_view(e.what()).starts_with(prompt.where)) throw;
    fail(e.code(), prompt.where, ": ", e.what());
  }
  const int64_t tokens = generator.count_tokens(prepared.text, prepared.add_special);
  if (tokens == 0) fail(ErrorCode::kInvalidArgument, prompt.where, ": the prompt is empty");
  if (const int64_t context = model.info().context; tokens >= context)
    fail(ErrorCode::kInvalidArgument, prompt.where, ": the prompt has ", tokens,
         " tokens and the model's context ", context, "; shorten it");
  return prepared;
}

int run_many(Model& model, const Flags& flags, const GenerateOptions& options, Output& out) {
  std::vector<Prompt> prompts = read_prompts(flags.prompts);
  // One call takes prompts of one kind; almost every file has only one.
  std::vector<std::string> texts[2];
  std::vector<size_t> places[2];
  Generator generator(model);
  bool warned = false;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Prepared prepared = prepare_checked(model, generator, flags, prompts[i]);
    if (!std::exchange(warned, warned || prepared.lost_system)) warn_of(prepared, out);
    texts[prepared.add_special].push_back(std::move(prepared.text));
    places[prepared.add_special].push_back(i);
  }
  StopSignal stop;
  GenerateOptions heard = options;
  heard.should_stop = [&] { return stop.asked(); };
  std::vector<std::optional<Generation>> results(prompts.size());
  size_t next = 0, done = 0;
  int64_t prompt_tokens = 0, new_tokens = 0;
  // A result is shown once all before it have been: output is in the order of the file.
  auto take = [&](size_t index, const Generation& result) {
    results[index] = result;
    results[index]->text.insert(0, flags.prefill);
    ++done;
    prompt_tokens += result.prompt_tokens;
    new_tokens += result.generated_tokens;
    for (; next < results.size() && results[next]; ++next) {
      Json object = {{"index", next}};
      object.update(generation_json(*results[next]));
      out.event(object);
      if (!out.json()) {
        if (next > 0) std::fputc('\n', stdout);
        write_answer(results[next]->text + "\n");
      }
      results[next]->text.clear();
    }
    if (!out.quiet() && is_terminal(stderr) && !is_terminal(stdout))
      std::fprintf(stderr, "\r%zu/%zu prompts\x1b[K", done, prompts.size());
    return true;
  };
  for (int special : {0, 1}) {
    if (texts[special].empty() || stop.asked()) continue;
    try {
      generator.complete_many(texts[special], heard, special != 0,
                              [&](size_t index, const Generation& result) {
                                return take(places[special][index], result);
                              });
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kCancelled || done == 0) throw;
    }
  }
  if (!out.quiet()) {
    if (is_terminal(stderr) && !is_terminal(stdout)) std::fputs("\r\x1b[K", stderr);
    std::fprintf(stderr, "%s of %s; %s, %s\n", plural(static_cast<int64_t>(done), "answer").c_str(),
                 plural(static_cast<int64_t>(prompts.size()), "prompt").c_str(),
                 plural(prompt_tokens, "prompt token").c_str(),
                 plural(new_tokens, "new token").c_str());
  }
  return stop.asked() ? kInterrupted : kDone;
}

int run(const Args& args, const Flags& flags) {
  args.require({"prompt", "prompts"});
  if (args.given("prompt") && args.given("prompts"))
    throw UsageError("give --prompt or --prompts, not both");
  GenerateOptions options = flags.sampling.checked(flags.model.seed);
  Output out(flags.output.json, flags.output.quiet);
  Engine engine(flags.device.options());
  Model model = Model::load(engine, flags.model.options());
  warn_person(model.info().adapter_note, out.quiet());
  return args.given("prompts") ? run_many(model, flags, options, out)
                               : run_one(model, flags, options, out);
}

}  // namespace

std::function<int()> declare_generate(Args& args) {
  auto flags = std::make_shared<Flags>();
  args.summary = "answer a prompt, or a file of prompts";
  args.details =
      "The text goes to standard output as it is made, the statistics to standard error. A prompt "
      "is one user message where the model has a chat template.";
  args.json =
      "One object per prompt: text, tokens (ids), prompt_tokens, generated_tokens, prompt_tps, "
      "generation_tps, first_token_ms, finish_reason (stop, length or cancelled); with "
      "--prompts also index.";
  args.examples = {
      {"wick generate --prompt \"Who lives in the forest?\"", "ask the small model inside wick"},
      {"wick generate --adapter-path out --prompt - < question.txt", "a prompt from a file"},
      {"wick generate --model M --prompt \"Once upon a time\" --temp 0.8 --top-p 0.95 --seed 7",
       "sampled, the same again with the same seed"},
      {"wick generate --model M --prompts questions.jsonl --json > answers.jsonl",
       "many prompts side by side, answers in order"},
  };
  args.group("Prompt");
  args.text("--prompt,-p", flags->prompt, "TEXT",
            "The prompt; - reads standard input. \\n and \\t stand for a line break and a tab.");
  args.text("--prompts", flags->prompts, "FILE.jsonl",
            "Many prompts: rows {\"prompt\"}, {\"messages\"} or {\"text\"} (no chat template).")
      .path();
  args.text("--prefill-response", flags->prefill, "TEXT", "The answer begins with this text.");
  args.flag("--ignore-chat-template", flags->ignore_chat_template, "Take prompts as plain text.");
  add_model_flags(args, flags->model, true);
  add_sampling_flags(args, flags->sampling);
  add_chat_flags(args, flags->chat);
  add_device_flags(args, flags->device);
  add_output_flags(args, flags->output);
  args.accept("--verbose", OptionKind::kText);
  args.refuse("--use-default-chat-template", OptionKind::kFlag,
              "no such default exists any more; put chat_template.jinja into the model's folder");
  args.refuse("--max-kv-size", OptionKind::kText,
              "the cache holds the whole context; shorten the prompt or lower --max-tokens");
  args.refuse("--kv-bits", OptionKind::kText, "the cache is kept in full precision");
  args.refuse("--prompt-cache-file", OptionKind::kText,
              "use --prompts or wick chat, which keep the cache in memory");
  args.refuse("--draft-model", OptionKind::kText, "it decodes with the one model");
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
