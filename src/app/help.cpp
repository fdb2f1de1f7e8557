// SPDX-License-Identifier: Apache-2.0
#include "app/help.h"

#include <algorithm>

#include "app/format.h"
#include "app/terminal.h"
#include "app/verbs.h"
#include "base/check.h"
#include "wick/version.h"

namespace wick {

namespace {

constexpr size_t kIndent = 2, kHelpColumn = 30;

size_t screen_width() {
  return static_cast<size_t>(std::clamp(is_terminal(stdout) ? terminal_columns() : 90, 60, 100));
}

// "  left      right", the right side wrapped in its column.
std::string two_columns(const std::string& left, const std::string& right, size_t column) {
  std::string text = std::string(kIndent, ' ') + left;
  auto lines = wrap(right, screen_width() - column);
  size_t from = 0;
  if (columns_of(text) + 2 <= column && !lines.empty()) {
    text += std::string(column - columns_of(text), ' ') + lines[0];
    from = 1;
  }
  text += "\n";
  for (size_t i = from; i < lines.size(); ++i) text += std::string(column, ' ') + lines[i] + "\n";
  return text;
}

}  // namespace

std::string flag_spelling(const Option& option) {
  std::string text = option.letter ? cat("-", std::string(1, option.letter), ", ") : "";
  for (size_t i = 0; i < option.names.size(); ++i) text += (i ? ", --" : "--") + option.names[i];
  if (option.negatable) text += ", --no-" + option.name();
  if (!option.value.empty()) text += " " + option.value;
  return text;
}

std::string option_text(const Option& option) {
  std::string text = option.help;
  if (!option.default_text.empty()) text += " [" + option.default_text + "]";
  return text;
}

std::vector<std::string> option_groups(const Args& args) {
  std::vector<std::string> groups;
  for (const auto& option : args.options())
    if (!option.hidden && std::find(groups.begin(), groups.end(), option.group) == groups.end())
      groups.push_back(option.group);
  auto general = std::find(groups.begin(), groups.end(), "General");
  if (general != groups.end()) std::rotate(general, general + 1, groups.end());
  return groups;
}

std::string verb_help(const Args& args) {
  std::string text;
  for (const auto& line : wrap(cat("wick ", args.verb(), " - ", args.summary), screen_width()))
    text += line + "\n";
  text += "\n";
  text += cat("Usage: wick ", args.verb(), " [options]",
              args.positional_name.empty() ? "" : " [" + args.positional_name + " …]", "\n");
  if (!args.details.empty()) {
    text += "\n";
    for (const auto& line : wrap(args.details, screen_width())) text += line + "\n";
  }
  if (!args.examples.empty()) text += "\nExamples:\n";
  for (const auto& example : args.examples)
    text += cat("  # ", example.what, "\n  ", example.command, "\n");
  if (!args.positional_name.empty())
    text += "\nArguments:\n" + two_columns(args.positional_name, args.positional_help, kHelpColumn);
  for (const auto& group : option_groups(args)) {
    text += "\n" + group + ":\n";
    for (const auto& option : args.options())
      if (!option.hidden && option.group == group)
        text += two_columns(flag_spelling(option), option_text(option), kHelpColumn);
  }
  if (!args.json.empty()) {
    text += "\nWith --json:\n";
    for (const auto& line : wrap(args.json, screen_width() - kIndent))
      text += std::string(kIndent, ' ') + line + "\n";
  }
  text += "\nDefaults are in [brackets].\n";
  return text;
}

std::string overview() {
  std::string text = "wick " WICK_VERSION
                     " - fine-tune language models with LoRA, and run the result\n\n"
                     "Usage: wick VERB [options]\n\nVerbs:\n";
  for (const auto& args : all_args()) text += two_columns(args->verb(), args->summary, 14);
  text +=
      "\nExamples:\n"
      "  # teach the small model inside wick from data/train.jsonl\n"
      "  wick train --data data --adapter-path out\n"
      "  # ask it\n"
      "  wick generate --adapter-path out --prompt \"How many singers are there?\"\n"
      "  # talk to a model of yours\n"
      "  wick chat --model path/to/model\n"
      "  # memory and time of a run, before it runs\n"
      "  wick plan --model path/to/model --data data\n\n"
      "wick VERB --help shows a verb's options; --config FILE.yaml reads them from a file.\n"
      "Without --model, every verb uses the small model inside wick.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted (training saves first).\n";
  return text;
}

}  // namespace wick
