// SPDX-License-Identifier: Apache-2.0
// Args: the options of one verb as a table. The same table reads the command line and the settings
// file (--config), and makes the help, the completions, the man page and docs/commands.md, so that
// none of them can say something else than another.
//
// The command line beats the settings file, which beats the defaults. Every wrong use is a
// UsageError that names the flag or key, what was given and what is wanted.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/json.h"

namespace wick {

// Wrong use of the command line: exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class OptionKind {
  kFlag,    // true or false; no value on the command line
  kText,    //
  kInt,     //
  kFloat,   //
  kSize,    // bytes: 4GB, 512M, 4.1MB, 2GiB
  kList,    // texts separated by commas
  kRepeat,  // one text per occurrence
  kObject,  // a JSON object, kept as text
};

// Where an option's value came from, weakest first.
enum class Source { kDefault, kConfig, kCommandLine };

struct Option {
  std::vector<std::string> names;  // "adapter-path"; the first is the name, the rest synonyms
  char letter = 0;                 // 'p' for -p
  OptionKind kind = OptionKind::kText;
  std::string value;  // placeholder: N, FILE, …
  std::string help;
  std::string group;
  std::string default_text;  // "" shows none
  std::vector<std::string> choices;
  bool hidden = false;       // left out of help: peers' words that change nothing
  bool negatable = false;    // --no-NAME exists
  bool greedy = false;       // kRepeat: one occurrence takes all words up to the next flag
  bool file = false;         // the value is a path, and on the command line not empty
  bool or_empty = false;     // unless this is set
  std::string refusal = {};  // not empty: giving it is an error, and this is what to do instead
  Source source = Source::kDefault;
  bool pinned = false;  // by override_from_config
  // Takes a value of the option's kind, already checked; `where` names the flag or key.
  std::function<void(const Json& value, const std::string& where)> set;
  // Throws what set() would; empty where every value of the kind is taken.
  std::function<void(const Json& value, const std::string& where)> check = {};

  const std::string& name() const { return names.front(); }
  // Chained after a declaration.
  Option& shown(std::string text) { return default_text = std::move(text), *this; }
  Option& one_of(std::vector<std::string> list) { return choices = std::move(list), *this; }
  Option& hide() { return hidden = true, *this; }
  Option& takes_all() { return greedy = true, *this; }
  Option& path() { return file = true, *this; }
  Option& path_or_empty() { return or_empty = true, path(); }
};

struct Example {
  std::string command, what;
};

class Args {
 public:
  explicit Args(std::string verb);
  Args(const Args&) = delete;
  Args& operator=(const Args&) = delete;

  // What the verb does (one line), more about it (may be empty), commands to copy.
  std::string summary, details;
  std::string json;  // what --json gives
  std::vector<Example> examples;
  std::string positional_name, positional_help;

  // Declarations. `names` is "--adapter-path", "--prompt,-p" or "--init-adapter,--resume-adapter-
  // file". The target's value is the default; it must outlive parse().
  void group(std::string title);
  Option& flag(const std::string& names, bool& target, const std::string& help);
  Option& text(const std::string& names, std::string& target, const std::string& value,
               const std::string& help);
  Option& integer(const std::string& names, int64_t& target, const std::string& value,
                  const std::string& help, IntRange range = {});
  Option& number(const std::string& names, double& target, const std::string& value,
                 const std::string& help, FloatRange range = {});
  Option& size(const std::string& names, int64_t& target, const std::string& value,
               const std::string& help);
  Option& list(const std::string& names, std::vector<std::string>& target, const std::string& value,
               const std::string& help);
  Option& repeat(const std::string& names, std::vector<std::string>& target,
                 const std::string& value, const std::string& help);
  Option& object(const std::string& names, std::string& target, const std::string& value,
                 const std::string& help);
  void positional(const std::string& name, std::vector<std::string>& target,
                  const std::string& help);
  // A peer's flag that changes nothing here.
  void accept(const std::string& names, OptionKind kind);
  // A peer's flag that wick does not have, and what to do instead. A false or null value in a
  // settings file is no use of it.
  void refuse(const std::string& names, OptionKind kind, const std::string& instead);
  // A key of the settings file whose value is not a flag's. `read` gets it with "FILE: KEY"; it
  // returns false to have a flag of that name read the value.
  using ReadKey = std::function<bool(const Json& value, const std::string& where)>;
  void config_key(const std::string& key, ReadKey read);

  // Sets the option of that name from a settings file's value found under another key.
  void set_from_config(const std::string& name, const Json& value, const std::string& where);
  // The same, and whatever else the file says of that option, before or after, has no effect.
  void override_from_config(const std::string& name, const Json& value, const std::string& where);

  // Which verbs have an option of that name; asked about names that this verb does not know.
  std::function<std::vector<std::string>(const std::string& name)> other_verbs;

  enum class Parsed { kRun, kHelp, kVersion };
  // Throws: UsageError; Error where the settings file cannot be read.
  Parsed parse(const std::vector<std::string>& words);

  const std::string& verb() const { return verb_; }
  // Whether a flag or a key of the settings file has that name (with dashes or underscores).
  bool knows(const std::string& name) const;
  const std::deque<Option>& options() const { return options_; }
  const std::vector<std::string>& words() const { return words_; }  // as given to parse()
  Source source(const std::string& name) const;
  bool given(const std::string& name) const { return source(name) != Source::kDefault; }
  // Throws UsageError unless one of the names was given.
  void require(const std::vector<std::string>& names) const;
  // Lines for people that parse() would like shown.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Option& add(const std::string& names, OptionKind kind, const std::string& value,
              const std::string& help);
  Option* find(const std::string& name);
  const Option* find(const std::string& name) const;
  void read_words(const std::vector<std::string>& words);
  void apply(Option& option, const std::vector<std::string>& texts);
  void read_config(const std::string& file);
  [[noreturn]] void unknown_flag(const std::string& word) const;
  // What other trainers' word for a setting is called here, as a key; "" for one that is unknown.
  std::string name_here(const std::string& key) const;
  [[noreturn]] void unknown_key(const std::string& key, const std::string& where) const;

  std::string verb_, group_;
  std::deque<Option> options_;  // declarations hand out references
  std::map<std::string, ReadKey> config_keys_;
  std::vector<std::string>* positional_ = nullptr;
  std::vector<std::string> words_, notes_;
  std::string config_;
  bool help_ = false, version_ = false;
};

// The typed value of a word of the command line; `where` names the flag. Throws: UsageError.
Json value_of_text(OptionKind kind, const std::string& text, const std::string& where);
// Checks a settings file's value against an option's kind and gives it that kind's form (a number
// for a size, an array for a list). Throws: UsageError with where, got and wanted.
Json checked_value(OptionKind kind, const Json& value, const std::string& where);

}  // namespace wick
