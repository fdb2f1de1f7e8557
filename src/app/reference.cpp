// SPDX-License-Identifier: Apache-2.0
#include "app/reference.h"

#include <algorithm>
#include <cstdio>

#include "app/format.h"
#include "app/help.h"
#include "app/verbs.h"
#include "base/check.h"
#include "text/unicode.h"
#include "wick/version.h"

namespace wick {

namespace {

constexpr const char* kTagline = "fine-tune language models with LoRA, and run the result";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::vector<std::string> spellings(const Option& option) {
  std::vector<std::string> flags;
  if (option.letter) flags.push_back(std::string("-") + option.letter);
  for (const auto& name : option.names) flags.push_back("--" + name);
  return flags;
}

// Other characters as troff's \[uXXXX]: it reads one byte as one character.
std::string ascii(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char byte = text[at];
    const uint32_t code = unicode::next_char(text, at);
    char escape[16];
    std::snprintf(escape, sizeof escape, "\\[u%04X]", code);
    if (code < 0x80)
      out += byte;
    else
      out += escape;
  }
  return out;
}

}  // namespace

std::string bash_completion() {
  auto tables = all_args();
  std::string names, cases;
  for (const auto& args : tables) {
    names += (names.empty() ? "" : " ") + args->verb();
    std::string flags, values;
    std::vector<std::string> files, others;  // flags of a path; of a value that only a person knows
    for (const auto& option : args->options()) {
      if (option.hidden) continue;
      const std::vector<std::string> names_of = spellings(option);
      for (const auto& flag : names_of) flags += (flags.empty() ? "" : " ") + flag;
      if (option.negatable) flags += " --no-" + option.name();
      if (option.kind == OptionKind::kFlag) continue;
      if (option.file || option.choices.empty()) {
        std::vector<std::string>& list = option.file ? files : others;
        list.insert(list.end(), names_of.begin(), names_of.end());
      } else {
        values += cat("        ", joined(names_of, "|"), ") COMPREPLY=($(compgen -W \"",
                      joined(option.choices, " "), "\" -- \"$cur\")); return ;;\n");
      }
    }
    if (!files.empty()) values += cat("        ", joined(files, "|"), ") _wick_files; return ;;\n");
    if (!others.empty()) values += cat("        ", joined(others, "|"), ") return ;;\n");
    cases += cat("    ", args->verb(), ")\n      flags=\"", flags, "\"\n      case \"$prev\" in\n",
                 values, "      esac ;;\n");
  }
  return cat(
      "# SPDX-License-Identifier: Apache-2.0\n"
      "# bash completion for wick, made by: wick completions bash\n"
      "_wick_files() {\n"
      "  local IFS=$'\\n'  # a name may have blanks\n"
      "  COMPREPLY=($(compgen -f -- \"$cur\"))\n"
      "}\n"
      "_wick() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} flags=\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"",
      names,
      " --help --version\" -- \"$cur\"))\n    return\n  fi\n"
      "  case \"${COMP_WORDS[1]}\" in\n",
      cases,
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
      "}\n"
      "complete -o filenames -F _wick wick\n");
}

std::string zsh_completion() {
  auto tables = all_args();
  auto quoted = [](std::string text) {
    text = replaced(text, "'", "'\\''");
    text = replaced(text, "[", "\\[");
    text = replaced(text, "]", "\\]");
    return replaced(text, ":", "\\:");
  };
  std::string verbs, cases;
  for (const auto& args : tables) {
    verbs += cat("    '", args->verb(), ":", quoted(args->summary), "'\n");
    std::string specs;
    for (const auto& option : args->options()) {
      if (option.hidden) continue;
      std::string help = quoted(option.help), action;
      if (option.kind != OptionKind::kFlag)
        action = cat(":", option.value.empty() ? "value" : quoted(option.value), ":",
                     option.file              ? "_files"
                     : option.choices.empty() ? ""
                                              : "(" + joined(option.choices, " ") + ")");
      std::string repeated = option.kind == OptionKind::kRepeat ? "*" : "";
      for (const auto& flag : spellings(option))
        // The sign lets a value follow it as well as a blank.
        specs +=
            cat("        '", repeated, flag, !action.empty() && flag.starts_with("--") ? "=" : "",
                "[", help, "]", action, "' \\\n");
      if (option.negatable)
        specs += cat("        '--no-", option.name(), "[not\\: ", help, "]' \\\n");
    }
    specs.resize(specs.size() - 3);
    cases += cat("      ", args->verb(), ")\n      _arguments -S \\\n", specs, " ;;\n");
  }
  return cat(
      "#compdef wick\n"
      "# SPDX-License-Identifier: Apache-2.0\n"
      "# zsh completion for wick, made by: wick completions zsh\n"
      "_wick() {\n"
      "  local context state line\n"
      "  local -a verbs=(\n",
      verbs,
      "  )\n"
      "  _arguments -C '1:verb:->verb' '*::option:->option'\n"
      "  case $state in\n"
      "    verb) _describe verb verbs ;;\n"
      "    option)\n"
      "      case $words[1] in\n",
      cases,
      "      esac ;;\n"
      "  esac\n"
      "}\n"
      "_wick \"$@\"\n");
}

std::string man_page() {
  auto roff = [](std::string text) {
    text = replaced(text, "\\", "\\e");
    text = replaced(text, "-", "\\-");
    text = ascii(replaced(text, "…", "..."));
    // A line that starts with a dot or a quote would be a request.
    if (!text.empty() && (text[0] == '.' || text[0] == '\'')) text = "\\&" + text;
    return replaced(text, "\n'", "\n\\&'");
  };
  std::string text =
      cat(".\\\" SPDX-License-Identifier: Apache-2.0\n"
          ".\\\" made by: wick completions man\n"
          ".TH WICK 1 \"\" \"wick ",
          WICK_VERSION, "\" \"User Commands\"\n", ".SH NAME\nwick \\- ", kTagline,
          "\n.SH SYNOPSIS\n.B wick\n.I VERB\n.RI [ options ]\n"
          ".SH DESCRIPTION\n"
          "One program that fine\\-tunes transformer language models with LoRA, runs "
          "the result and looks into both. Models are folders in Hugging Face layout; "
          "without\n.B \\-\\-model\nevery verb uses the small model inside the "
          "program. Adapters are those of PEFT.\n.SH VERBS\n");
  auto tables = all_args();
  for (const auto& args : tables)
    text += cat(".TP\n.B ", args->verb(), "\n", roff(args->summary), "\n");
  for (const auto& args : tables) {
    std::string upper = args->verb();
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    text += cat(".SH \"WICK ", upper, "\"\n",
                roff(args->details.empty() ? args->summary : args->details), "\n");
    for (const auto& group : option_groups(*args)) {
      if (group == "General" && args != tables.front()) continue;
      text += cat(".SS ", roff(group), "\n");
      for (const auto& option : args->options())
        if (!option.hidden && option.group == group)
          text +=
              cat(".TP\n.B ", roff(flag_spelling(option)), "\n", roff(option_text(option)), "\n");
    }
    if (!args->json.empty()) text += cat(".SS JSON\n", roff(args->json), "\n");
    text += ".SS Examples\n";
    for (const auto& example : args->examples)
      text += cat(".PP\n", roff(example.what), ":\n.PP\n.nf\n.RS\n", roff(example.command),
                  "\n.RE\n.fi\n");
  }
  return text +
         ".SH \"SETTINGS FILES\"\n"
         "The keys of a file given with\n.B \\-\\-config\nare the flags' names with underscores. "
         "The command line beats the file, which beats the defaults. The nested keys of mlx\\-lm "
         "(lora_parameters, lr_schedule, optimizer_config) are understood. The general options of "
         "wick train exist in every verb.\n"
         ".SH \"EXIT STATUS\"\n"
         ".TP\n.B 0\ndone\n.TP\n.B 1\nfailed; standard error has one line that says why\n"
         ".TP\n.B 2\nwrong use: an unknown flag or key, or a value of the wrong kind\n"
         ".TP\n.B 130\ninterrupted; training saves first\n";
}

std::string markdown_reference() {
  auto cell = [](std::string text) {
    text = replaced(text, "|", "\\|");
    return replaced(text, "<", "&lt;");
  };
  std::string text = cat(
      "<!-- made by: wick completions markdown -->\n"
      "# The command line\n\n"
      "`wick VERB [options]`. A flag means the same in every verb. `--json` puts one object per "
      "line "
      "on standard\noutput and people's text on standard error. Exit codes: 0 done, 1 failed (one "
      "line on standard error says\nwhy), 2 wrong use, 130 interrupted (training saves first).\n\n"
      "`--config FILE.yaml` sets the same options: keys are the flags' names with underscores. The "
      "command line beats\nthe file, which beats the defaults. mlx-lm's nested `lora_parameters`, "
      "`lr_schedule` and `optimizer_config` are\nunderstood. Keys of another verb are left aside, "
      "with a note; unknown ones are an error.\n\n| verb | |\n|---|---|\n");
  auto tables = all_args();
  for (const auto& args : tables)
    text += cat("| [", args->verb(), "](#wick-", args->verb(), ") | ", cell(args->summary), " |\n");
  for (const auto& args : tables) {
    text += cat("\n## wick ", args->verb(), "\n\n");
    std::string intro = args->details.empty() ? args->summary : args->details;
    text += intro + "\n\n```\n";
    for (const auto& example : args->examples)
      text += cat("# ", example.what, "\n", example.command, "\n");
    text += "```\n";
    for (const auto& group : option_groups(*args)) {
      text += cat("\n| ", group, " | | default |\n|---|---|---|\n");
      for (const auto& option : args->options())
        if (!option.hidden && option.group == group)
          text += cat("| `", flag_spelling(option), "` | ", cell(option.help), " | ",
                      cell(option.default_text), " |\n");
    }
    if (!args->json.empty()) text += cat("\nWith `--json`: ", args->json, "\n");
  }
  return text;
}

}  // namespace wick
