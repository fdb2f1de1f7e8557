// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "app/conversation.h"
#include "app/format.h"
#include "app/generation_view.h"
#include "app/line_reader.h"
#include "app/options.h"
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
};

constexpr const char* kFence = "\"\"\"";

// Reads one message: a line that ends in a backslash goes on in the next one, and what stands
// between two lines of """ is one message.
LineReader::Result read_message(LineReader& reader, std::string& message) {
  std::string line;
  auto result = reader.read("> ", line);
  message = line;
  if (result != LineReader::Result::kLine) return result;
  if (line.starts_with(kFence)) {
    message = line.substr(3);
    while (true) {
      size_t fence = message.rfind(kFence);
      if (fence != std::string::npos && fence + 3 == message.size()) {
        message.resize(fence);
        if (message.ends_with("\n")) message.pop_back();
        return LineReader::Result::kLine;
      }
      result = reader.read(". ", line);
      if (result == LineReader::Result::kInterrupted) return result;
      if (result == LineReader::Result::kEnd) return LineReader::Result::kLine;
      message += (message.empty() ? "" : "\n") + line;
    }
  }
  while (message.ends_with("\\")) {
    message.back() = '\n';
    result = reader.read(". ", line);
    if (result == LineReader::Result::kInterrupted) return result;
    if (result == LineReader::Result::kEnd) break;
    message += line;
  }
  return LineReader::Result::kLine;
}

class Chat {
 public:
  Chat(Model& model, const Flags& flags)
      : model_(model),
        generator_(model),
        options_(flags.sampling.checked(flags.model.seed)),
        json_(flags.output.json),
        quiet_(flags.output.quiet),
        conversation_(model.info().context, options_.max_tokens,
                      [this](const std::vector<Message>& messages) {
                        return generator_.count_tokens(model_.render_chat(messages, chat_options_),
                                                       false);
                      }) {
    chat_options_.template_config_json = flags.chat.chat_template_config;
    chat_options_.date = flags.chat.date;
    set_system(flags.chat.system_prompt);
  }

  int run() {
    if (reader_.terminal()) {
      note(describe_model(model_.info()));
      note("/help shows the commands, Ctrl-D leaves");
    }
    int code = kDone;
    bool asked_to_leave = false;
    while (true) {
      std::string message;
      auto result = read_message(reader_, message);
      if (result == LineReader::Result::kEnd) return code;
      if (result == LineReader::Result::kInterrupted) {
        // Ctrl-C drops what was typed; where nothing was, twice leaves.
        if (!message.empty()) continue;
        if (asked_to_leave) return code;
        asked_to_leave = true;
        note("press Ctrl-C again, or Ctrl-D, to leave");
        continue;
      }
      asked_to_leave = false;
      if (message.find_first_not_of(" \t\n") == std::string::npos) continue;
      if (message.starts_with("//")) {
        message.erase(0, 1);
      } else if (message[0] == '/') {
        if (!command(message)) return code;
        continue;
      }
      try {
        turn(message);
      } catch (const Error& error) {
        // A message that cannot be answered is not the end of the conversation; nor is one whose
        // answer was stopped before it began.
        const bool stopped = error.code() == ErrorCode::kCancelled;
        if (error.code() != ErrorCode::kInvalidArgument && !stopped) throw;
        conversation_.take_back();
        if (stopped && !reader_.terminal()) throw;
        std::fprintf(stderr, "wick chat: %s\n", visible(error.what()).c_str());
        if (!reader_.terminal()) code = kFailed;
      }
    }
  }

 private:
  void note(const std::string& text) {
    if (quiet_) return;
    bool color = uses_color("auto", stderr);
    std::fprintf(stderr, color ? "\x1b[2m%s\x1b[0m\n" : "%s\n", visible(text, true).c_str());
  }

  // False: leave.
  bool command(const std::string& line) {
    size_t blank = line.find(' ');
    std::string name = line.substr(0, blank);
    std::string rest = blank == std::string::npos ? "" : line.substr(blank + 1);
    if (name == "/exit" || name == "/quit" || name == "/q") return false;
    if (name == "/reset") {
      conversation_.reset();
      note("a new conversation");
    } else if (name == "/system") {
      set_system(rest);
      note(rest.empty() ? "no system message" : "the system message is set");
    } else if (name == "/help") {
      note(
          "/reset          begin anew (the system message stays)\n"
          "/system TEXT    set the system message; without TEXT, have none\n"
          "/exit           leave, as Ctrl-D does\n"
          "A line that ends in \\ goes on in the next one; what stands between two lines of "
          "\"\"\" is one message.\n"
          "Ctrl-C stops an answer. // at the start of a line sends it with one slash.");
    } else {
      std::string near =
          nearest_name(name, std::vector<std::string>{"/reset", "/system", "/help", "/exit"});
      note(cat("there is no ", name,
               near.empty() ? "; /help shows the commands" : "; did you mean " + near + "?"));
    }
    return true;
  }

  void set_system(const std::string& text) {
    conversation_.set_system(text);
    look_for_system_ = !text.empty();
  }

  void turn(const std::string& message) {
    Conversation::Fit fit = conversation_.ask(message);
    const std::vector<Message>& messages = conversation_.messages();
    if (std::exchange(look_for_system_, false) &&
        !has_words(model_.render_chat(messages, chat_options_), messages.front().content))
      note("warning: the chat template leaves the system message out");
    int64_t context = model_.info().context;
    if (fit.forgotten > 0)
      note(cat("(the conversation no longer fits the model's ", format_count(context),
               " tokens: forgot the oldest ", plural(fit.forgotten, "turn"), ")"));
    else if (fit.nearly_full && !warned_)
      note(cat("(the conversation takes ", format_count(fit.tokens), " of the model's ",
               format_count(context), " tokens; when it is full, the oldest turns are forgotten)"));
    warned_ = fit.nearly_full && fit.forgotten == 0;

    GenerateOptions options = options_;
    options.max_tokens = std::min(options.max_tokens, fit.room);
    StopSignal stop(false);
    options.should_stop = [&] { return stop.asked(); };
    Generation result = generator_.chat(
        messages, options,
        [&](const std::string& piece) {
          if (!json_) write_answer(piece);
          return true;
        },
        chat_options_);
    conversation_.answer(result.text);
    if (json_) {
      Json event = {
          {"event", "turn"}, {"turn", conversation_.turns()}, {"forgotten", fit.forgotten}};
      event.update(generation_json(result));
      std::printf("%s\n", json_line(event).c_str());
    } else {
      std::fputc('\n', stdout);
    }
    std::fflush(stdout);
    if (result.finish_reason == "length")
      note(options.max_tokens < options_.max_tokens
               ? cat("(cut: the model's context of ", format_count(context), " tokens is full)")
               : cat("(cut after ", plural(options.max_tokens, "token"),
                     "; --max-tokens allows more)"));
    if (result.finish_reason == "cancelled" && !reader_.terminal())
      fail(ErrorCode::kCancelled, "stopped; the messages behind this one were not answered");
  }

  Model& model_;
  Generator generator_;
  GenerateOptions options_;
  ChatOptions chat_options_;
  bool json_, quiet_, warned_ = false;
  bool look_for_system_ = false;  // in the next prompt: the template may not write it
  Conversation conversation_;
  LineReader reader_;
};

int run(const Flags& flags) {
  Engine engine(flags.device.options());
  Model model = Model::load(engine, flags.model.options());
  if (!model.has_chat_template())
    fail(ErrorCode::kUnsupported, describe_model(model.info()),
         " has no chat template; use wick generate, or put chat_template.jinja into its folder");
  warn_person(model.info().adapter_note, flags.output.quiet);
  return Chat(model, flags).run();
}

}  // namespace

std::function<int()> declare_chat(Args& args) {
  auto flags = std::make_shared<Flags>();
  flags->sampling.options.max_tokens = 256;
  args.summary = "talk to a model in the terminal";
  args.details =
      "The conversation is kept until /reset. When it no longer fits the model's context, the "
      "oldest turns are forgotten, and wick says so. Works with piped input too: one message per "
      "line.";
  args.json =
      "One object per answer: event (turn), turn, forgotten (turns dropped to fit), and the "
      "fields of wick generate.";
  args.examples = {
      {"wick chat", "talk to the small model inside wick"},
      {"wick chat --model M --adapter-path out --temp 0.7", "with an adapter, less predictable"},
      {"wick chat --model M --system-prompt \"Answer in one sentence.\" < questions.txt",
       "one conversation from a file"},
  };
  add_model_flags(args, flags->model, true);
  add_sampling_flags(args, flags->sampling);
  add_chat_flags(args, flags->chat);
  add_device_flags(args, flags->device);
  add_output_flags(args, flags->output);
  args.refuse(
      "--max-kv-size", OptionKind::kText,
      "the cache holds the whole context, and the oldest turns are forgotten when it is full");
  return [flags] { return run(*flags); };
}

}  // namespace wick
