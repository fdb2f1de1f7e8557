// SPDX-License-Identifier: Apache-2.0
#include "app/args.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "app/format.h"
#include "base/check.h"

namespace wick {

namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t end = std::min(text.find(separator, begin), text.size());
    std::string part = text.substr(begin, end - begin);
    size_t first = part.find_first_not_of(' ');
    if (first != std::string::npos)
      parts.push_back(part.substr(first, part.find_last_not_of(' ') - first + 1));
    begin = end + 1;
  }
  return parts;
}

template <typename... Parts>
[[noreturn]] void misuse(Parts&&... parts) {
  throw UsageError(cat(std::forward<Parts>(parts)...));
}

// -1 and -0.5 are values, not flags.
bool value_like(const std::string& word) {
  return word.size() > 1 && (std::isdigit(static_cast<unsigned char>(word[1])) || word[1] == '.');
}

std::string shown(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Where no choice is a likely typing mistake, the longest that the word is about: other programs
// have adamw_torch_fused.
std::string nearest_choice(const std::string& word, const std::vector<std::string>& list) {
  std::string near = nearest_name(word, list);
  if (!near.empty()) return near;
  for (const std::string& choice : list)
    if (choice.size() > near.size() && word.find(choice) != std::string::npos) near = choice;
  return near;
}

}  // namespace

Json value_of_text(OptionKind kind, const std::string& text, const std::string& where) {
  const char* end = text.data() + text.size();
  switch (kind) {
    case OptionKind::kFlag:
      if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
      if (text == "false" || text == "0" || text == "no" || text == "off") return false;
      misuse(where, " got \"", text, "\", wanted nothing, true or false");
    case OptionKind::kInt: {
      int64_t value = 0;
      auto [stop, error] = std::from_chars(text.data(), end, value);
      if (error == std::errc() && stop == end) return value;
      double real = 0;  // 1e6 is a whole number too
      auto [stop2, error2] = std::from_chars(text.data(), end, real);
      if (error2 == std::errc() && stop2 == end && real == std::floor(real) &&
          std::abs(real) < 9e15)
        return static_cast<int64_t>(real);
      misuse(where, " got \"", text, "\", wanted a whole number");
    }
    case OptionKind::kFloat: {
      double value = 0;
      auto [stop, error] = std::from_chars(text.data(), end, value);
      if (error == std::errc() && stop == end && std::isfinite(value)) return value;
      misuse(where, " got \"", text, "\", wanted a number");
    }
    case OptionKind::kList: {
      Json parts = Json::array();
      for (const auto& part : split(text, ',')) parts.push_back(part);
      return parts;
    }
    case OptionKind::kObject:
      try {
        return checked_value(kind, parse_json(text, where), where);
      } catch (const Error& error) {
        misuse(error.what(), "; wanted a JSON object, such as '{\"enable_thinking\": false}'");
      }
    case OptionKind::kText:
    case OptionKind::kSize:
    case OptionKind::kRepeat:
      return checked_value(kind, text, where);
  }
  misuse(where, ": unknown kind of option");
}

namespace {

// PyYAML's numbers may have underscores between digits; as YAML 1.2 has it those are texts.
std::optional<std::string> without_underscores(const Json& value) {
  if (!value.is_string()) return std::nullopt;
  std::string text = value.get<std::string>();
  auto digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] == '_' ? i == 0 || !digit(i - 1) || !digit(i + 1)
                       : !digit(i) && std::string("+-.eE").find(text[i]) == std::string::npos)
      return std::nullopt;
  if (std::erase(text, '_') == 0) return std::nullopt;
  return text;
}

}  // namespace

Json checked_value(OptionKind kind, const Json& value, const std::string& where) {
  auto wrong = [&](const char* wanted) {
    misuse(where, " got ", json_kind(value), " (", shown(value), "), wanted ", wanted);
  };
  switch (kind) {
    case OptionKind::kFlag:
      // YAML 1.1, which PyYAML reads, has more words for them than 1.2.
      if (value.is_string()) {
        const std::string word = value.get<std::string>();
        for (const char* yes : {"yes", "Yes", "YES", "on", "On", "ON"})
          if (word == yes) return true;
        for (const char* no : {"no", "No", "NO", "off", "Off", "OFF"})
          if (word == no) return false;
      }
      if (!value.is_boolean()) wrong("true or false");
      return value;
    case OptionKind::kText:
      if (!value.is_string()) wrong("a text");
      return value;
    case OptionKind::kInt:
      if (const auto digits = without_underscores(value))
        return value_of_text(kind, *digits, where);
      if (value.is_number_float()) {
        double real = value.get<double>();
        if (real != std::floor(real) || std::abs(real) >= 9e15) wrong("a whole number");
        return static_cast<int64_t>(real);
      }
      if (!value.is_number_integer()) wrong("a whole number");
      return value;
    case OptionKind::kFloat:
      if (const auto digits = without_underscores(value))
        return value_of_text(kind, *digits, where);
      if (!value.is_number()) wrong("a number");
      if (!std::isfinite(value.get<double>())) misuse(where, " is not finite, wanted a number");
      return value.get<double>();
    case OptionKind::kSize: {
      if (value.is_number_integer()) return checked_value(kind, shown(value), where);
      if (!value.is_string()) wrong("a size such as 4GB or 512M");
      auto bytes = parse_size(value.get<std::string>());
      if (!bytes) misuse(where, " got ", shown(value), ", wanted a size such as 4GB or 512M");
      return *bytes;
    }
    case OptionKind::kList:
    case OptionKind::kRepeat: {
      if (value.is_string())
        return kind == OptionKind::kList ? value_of_text(kind, value.get<std::string>(), where)
                                         : Json::array({value});
      if (!value.is_array()) wrong("a text or a list of texts");
      for (const auto& part : value)
        if (!part.is_string())
          misuse(where, " has ", json_kind(part), " (", shown(part), ") in its list, wanted texts");
      return value;
    }
    case OptionKind::kObject:
      if (value.is_string()) return value_of_text(kind, value.get<std::string>(), where);
      if (!value.is_object()) wrong("a JSON object");
      return value;
  }
  misuse(where, ": unknown kind of option");
}

Args::Args(std::string verb) : verb_(std::move(verb)) {
  group("General");
  flag("--help,-h", help_, "Show this help.");
  flag("--version", version_, "Show the version.");
  text("--config,-c", config_, "FILE",
       "A YAML file of settings: keys are the flags' names with underscores. Flags beat it.")
      .path();
}

void Args::group(std::string title) { group_ = std::move(title); }

Option& Args::add(const std::string& names, OptionKind kind, const std::string& value,
                  const std::string& help) {
  Option& option = options_.emplace_back();
  for (const auto& name : split(names, ',')) {
    if (name.starts_with("--"))
      option.names.push_back(name.substr(2));
    else
      option.letter = name.at(1);
  }
  for (const auto& name : option.names)
    WICK_CHECK(find(name) == &option, "--", name, " is declared twice");
  option.kind = kind;
  option.value = value;
  option.help = help;
  option.group = group_;
  return option;
}

Option& Args::flag(const std::string& names, bool& target, const std::string& help) {
  Option& option = add(names, OptionKind::kFlag, "", help);
  // A flag that is on by itself can only be of use if it can be turned off.
  option.negatable = target;
  if (target) option.default_text = "on";
  option.set = [&target](const Json& value, const std::string&) { target = value.get<bool>(); };
  return option;
}

Option& Args::text(const std::string& names, std::string& target, const std::string& value,
                   const std::string& help) {
  Option& option = add(names, OptionKind::kText, value, help);
  option.default_text = target;
  option.set = [&target, &option](const Json& given, const std::string& where) {
    target = given.get<std::string>();
    const auto& list = option.choices;
    if (list.empty() || std::find(list.begin(), list.end(), target) != list.end()) return;
    const std::string near = nearest_choice(target, list);
    misuse(where, " got \"", target, "\", wanted ", joined(list, ", "),
           near.empty() ? "" : "; did you mean " + near + "?");
  };
  return option;
}

Option& Args::integer(const std::string& names, int64_t& target, const std::string& value,
                      const std::string& help, IntRange range) {
  Option& option = add(names, OptionKind::kInt, value, help);
  option.default_text = std::to_string(target);
  option.set = [&target, &option, range](const Json& given, const std::string& where) {
    if (given.is_number_unsigned() && given.get<uint64_t>() > uint64_t{INT64_MAX})
      misuse(where, " got ", shown(given), ", wanted at most ", range.max);
    int64_t n = given.get<int64_t>();
    if (n < range.min) misuse(where, " got ", n, ", wanted at least ", range.min);
    if (n > range.max) misuse(where, " got ", n, ", wanted at most ", range.max);
    const auto& list = option.choices;
    if (!list.empty() && std::find(list.begin(), list.end(), std::to_string(n)) == list.end())
      misuse(where, " got ", n, ", wanted ", joined(list, ", "));
    target = n;
  };
  return option;
}

Option& Args::number(const std::string& names, double& target, const std::string& value,
                     const std::string& help, FloatRange range) {
  Option& option = add(names, OptionKind::kFloat, value, help);
  option.default_text = general(target);
  option.check = [range](const Json& given, const std::string& where) {
    double x = given.get<double>();
    if (x < range.min) misuse(where, " got ", x, ", wanted at least ", range.min);
    if (x > range.max) misuse(where, " got ", x, ", wanted at most ", range.max);
  };
  option.set = [&target, check = option.check](const Json& given, const std::string& where) {
    check(given, where);
    target = given.get<double>();
  };
  return option;
}

Option& Args::size(const std::string& names, int64_t& target, const std::string& value,
                   const std::string& help) {
  Option& option = add(names, OptionKind::kSize, value, help);
  option.set = [&target](const Json& given, const std::string&) { target = given.get<int64_t>(); };
  return option;
}

Option& Args::list(const std::string& names, std::vector<std::string>& target,
                   const std::string& value, const std::string& help) {
  Option& option = add(names, OptionKind::kList, value, help);
  option.default_text = joined(target, ",");
  option.set = [&target](const Json& given, const std::string& where) {
    target = given.get<std::vector<std::string>>();
    if (target.empty()) misuse(where, " got nothing, wanted one or more names, as in a,b");
  };
  return option;
}

Option& Args::repeat(const std::string& names, std::vector<std::string>& target,
                     const std::string& value, const std::string& help) {
  Option& option = add(names, OptionKind::kRepeat, value, help);
  option.set = [&target](const Json& given, const std::string&) {
    target = given.get<std::vector<std::string>>();
  };
  return option;
}

Option& Args::object(const std::string& names, std::string& target, const std::string& value,
                     const std::string& help) {
  Option& option = add(names, OptionKind::kObject, value, help);
  option.set = [&target](const Json& given, const std::string&) { target = dump_json(given); };
  return option;
}

void Args::positional(const std::string& name, std::vector<std::string>& target,
                      const std::string& help) {
  positional_ = &target;
  positional_name = name;
  positional_help = help;
}

void Args::accept(const std::string& names, OptionKind kind) {
  Option& option = add(names, kind, "X", "");
  option.hidden = true;
  option.negatable = kind == OptionKind::kFlag;
  option.set = [](const Json&, const std::string&) {};
}

void Args::refuse(const std::string& names, OptionKind kind, const std::string& instead) {
  accept(names, kind);
  options_.back().refusal = instead;
  options_.back().set = [instead](const Json& value, const std::string& where) {
    if (value.is_boolean() && !value.get<bool>()) return;
    misuse(where, " is not something wick does: ", instead);
  };
}

void Args::config_key(const std::string& key, ReadKey read) { config_keys_[key] = std::move(read); }

const Option* Args::find(const std::string& name) const {
  for (const auto& option : options_)
    if (std::find(option.names.begin(), option.names.end(), name) != option.names.end())
      return &option;
  return nullptr;
}

Option* Args::find(const std::string& name) {
  return const_cast<Option*>(std::as_const(*this).find(name));
}

bool Args::knows(const std::string& name) const {
  std::string dashes = name, underscores = name;
  std::replace(dashes.begin(), dashes.end(), '_', '-');
  std::replace(underscores.begin(), underscores.end(), '-', '_');
  const Option* option = find(dashes);
  return option ? option->refusal.empty() : config_keys_.contains(underscores);
}

Source Args::source(const std::string& name) const {
  const Option* option = find(name);
  WICK_CHECK(option, "no option --", name);
  return option->source;
}

void Args::require(const std::vector<std::string>& names) const {
  std::vector<std::string> flags;
  for (const auto& name : names) {
    if (given(name)) return;
    flags.push_back("--" + name);
  }
  misuse("needs ", joined(flags, " or "), "; see wick ", verb_, " --help");
}

Args::Parsed Args::parse(const std::vector<std::string>& words) {
  words_ = words;
  // Help is for people who do not know the flags yet: a wrong one beside it is no matter.
  for (const auto& word : words) {
    if (word == "--") break;
    if (word == "--help" || word == "-h") return Parsed::kHelp;
  }
  read_words(words);
  return version_ ? Parsed::kVersion : Parsed::kRun;
}

void Args::read_words(const std::vector<std::string>& given) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::vector<CLI::Option*> handles;
  for (const auto& option : options_) {
    std::string names;
    if (option.letter) names = std::string("-") + option.letter;
    for (const auto& name : option.names) names += (names.empty() ? "--" : ",--") + name;
    CLI::Option* handle = nullptr;
    if (option.kind == OptionKind::kFlag) {
      if (option.negatable)
        for (const auto& name : option.names) names += ",!--no-" + name;
      handle = app.add_flag(names);
    } else {
      handle = app.add_option(names);
    }
    handle->multi_option_policy(option.kind == OptionKind::kRepeat
                                    ? CLI::MultiOptionPolicy::TakeAll
                                    : CLI::MultiOptionPolicy::TakeLast);
    handle->allow_extra_args(false);
    handles.push_back(handle);
  }

  // Three habits of the parser are not ours: an empty value after '=' takes the next word, a flag
  // is taken as another flag's value, and a list in one occurrence would be split at brackets.
  std::vector<std::string> words;
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string& word = given[i];
    if (word == "--") {
      words.insert(words.end(), given.begin() + static_cast<int64_t>(i), given.end());
      break;
    }
    size_t equals = word.find('=');
    std::string head = word.substr(0, equals);
    Option* option = nullptr;
    if (head.size() > 2 && head.starts_with("--")) option = find(head.substr(2));
    if (head.size() == 2 && head[0] == '-')
      for (auto& candidate : options_)
        if (candidate.letter == head[1]) option = &candidate;
    if (!option || option->kind == OptionKind::kFlag) {
      words.push_back(word);
      continue;
    }
    words.push_back(head);
    if (equals != std::string::npos) {
      words.push_back(word.substr(equals + 1));
      continue;
    }
    auto is_flag = [&](const std::string& text) {
      return text.starts_with("--") && text.size() > 2 &&
             find(text.substr(2, text.find('=') - 2)) != nullptr;
    };
    if (i + 1 >= given.size() || is_flag(given[i + 1]))
      misuse(head, " needs a value",
             i + 1 < given.size() ? ", got the flag " + given[i + 1] : std::string());
    words.push_back(given[++i]);
    while (option->greedy && i + 1 < given.size() && !given[i + 1].starts_with("-")) {
      words.push_back(head);
      words.push_back(given[++i]);
    }
  }

  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    misuse(error.what());
  }
  std::vector<std::string> rest = app.remaining();
  for (const auto& word : rest)
    if (word.size() > 1 && word[0] == '-' && word != "--" && !value_like(word)) unknown_flag(word);
  rest.erase(std::remove(rest.begin(), rest.end(), "--"), rest.end());
  if (positional_)
    *positional_ = rest;
  else if (!rest.empty())
    misuse("unexpected argument \"", rest[0], "\"; see wick ", verb_, " --help");

  for (size_t i = 0; i < options_.size(); ++i)
    if (options_[i].name() == "config" && handles[i]->count() > 0)
      apply(options_[i], handles[i]->results());
  if (!config_.empty()) read_config(config_);
  for (size_t i = 0; i < options_.size(); ++i)
    if (handles[i]->count() > 0) apply(options_[i], handles[i]->results());
}

void Args::apply(Option& option, const std::vector<std::string>& texts) {
  std::string where = "--" + option.name();
  option.source = Source::kCommandLine;
  // Of a shell variable that has no value, most often.
  if (option.file && !option.or_empty && std::find(texts.begin(), texts.end(), "") != texts.end())
    misuse(where, " is empty, wanted ", option.value,
           option.default_text.empty() ? ""
                                       : cat("; leave ", where, " out for ", option.default_text));
  option.set(option.kind == OptionKind::kRepeat ? Json(texts)
                                                : value_of_text(option.kind, texts.back(), where),
             where);
}

void Args::unknown_flag(const std::string& word) const {
  std::string name = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const auto& option : options_) {
    if (!option.refusal.empty()) continue;
    for (const auto& each : option.names) {
      known.push_back("--" + each);
      if (option.negatable) known.push_back("--no-" + each);
    }
  }
  // Trainers in Python write them with underscores.
  std::string dashed = name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  if (std::find(known.begin(), known.end(), dashed) != known.end())
    misuse("unknown flag ", name, "; did you mean ", dashed, "?");
  std::string near = name.starts_with("--") ? nearest_name(name, known) : "";
  std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::string key = bare;
  std::replace(key.begin(), key.end(), '-', '_');
  if (config_keys_.contains(key))
    misuse("unknown flag ", name, "; ", key, " is a key of settings files: give --config FILE");
  std::vector<std::string> verbs = other_verbs ? other_verbs(bare) : std::vector<std::string>();
  if (!verbs.empty())
    misuse("unknown flag ", name, "; it belongs to wick ", joined(verbs, ", wick "));
  if (std::string here = name_here(key); !here.empty()) {
    std::replace(here.begin(), here.end(), '_', '-');
    near = "--" + here;
  }
  if (!near.empty()) misuse("unknown flag ", name, "; did you mean ", near, "?");
  misuse("unknown flag ", name, "; see wick ", verb_, " --help");
}

}  // namespace wick
