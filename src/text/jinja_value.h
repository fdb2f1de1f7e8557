// SPDX-License-Identifier: Apache-2.0
// The values of a template: Python's none, bool, int, float, str, list, tuple, dict and what jinja2
// adds (undefined, namespaces, loops, macros). Containers are immutable once a template sees them
// (the sandbox forbids mutation), so values are shared freely; only namespaces, loops, cyclers and
// joiners have state.
//
// Every string knows where its bytes came from (Run), which is how assistant_spans finds turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"

namespace wick::jinja {

// A piece of a string, from the end of the run before it to `end`. Concatenation keeps the border
// between two pieces, also between two literals: a turn's header ends at such a border.
struct Run {
  size_t end = 0;
  int32_t data = -1;        // index of the message whose field these bytes came from; -1: none's
  int32_t handling = -1;    // index of the message the template was handling when it wrote them
  int32_t generation = -1;  // number of the {% generation %} block that wrote them
};

// An empty `runs` means one run without provenance.
struct Str {
  std::string text;
  std::vector<Run> runs;
  bool markup = false;  // made by |safe or |escape: concatenation escapes the other side

  Str() = default;
  explicit Str(std::string t) : text(std::move(t)) {}
  Str(std::string t, int32_t data) : text(std::move(t)) {
    if (data >= 0) runs.push_back({text.size(), data});
  }

  void append(const Str& other);
  void append(std::string_view literal);
  Str substr(size_t begin, size_t end) const;  // byte offsets
  int32_t data_message() const;                // the first message that any byte came from, or -1
};

struct Budget;
struct List;
struct Dict;
struct Range;
struct Undefined;
struct Callable;
struct Namespace;
struct Generator;
struct Loop;
struct Cycler;
struct Joiner;

struct None {};

class Value {
 public:
  using Data = std::variant<
      std::shared_ptr<const Undefined>, None, bool, int64_t, double, std::shared_ptr<const Str>,
      std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<const Range>,
      std::shared_ptr<Generator>, std::shared_ptr<const Callable>, std::shared_ptr<Namespace>,
      std::shared_ptr<Loop>, std::shared_ptr<Cycler>, std::shared_ptr<Joiner>>;

  Value() : data_(None{}) {}
  Value(None) : data_(None{}) {}
  Value(bool b) : data_(b) {}
  Value(int64_t i) : data_(i) {}
  Value(int i) : data_(int64_t{i}) {}
  Value(size_t i) : data_(static_cast<int64_t>(i)) {}
  Value(double d) : data_(d) {}
  Value(Str s) : data_(std::make_shared<const Str>(std::move(s))) {}
  Value(std::string s) : Value(Str(std::move(s))) {}
  Value(const char* s) : Value(Str(std::string(s))) {}
  template <typename T>
  Value(std::shared_ptr<T> p) : data_(std::move(p)) {}

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  bool is_undefined() const { return is<std::shared_ptr<const Undefined>>(); }
  bool is_none() const { return is<None>(); }
  bool is_bool() const { return is<bool>(); }
  bool is_int() const { return is<int64_t>() || is_bool(); }  // as in Python, bool is an int
  bool is_float() const { return is<double>(); }
  bool is_number() const { return is_int() || is_float(); }
  bool is_string() const { return is<std::shared_ptr<const Str>>(); }
  bool is_list() const;  // list, not tuple
  bool is_tuple() const;
  bool is_sequence() const { return is<std::shared_ptr<const List>>(); }
  bool is_dict() const { return is<std::shared_ptr<const Dict>>(); }

  bool as_bool() const { return std::get<bool>(data_); }
  int64_t as_int() const { return is_bool() ? int64_t{as_bool()} : std::get<int64_t>(data_); }
  double as_float() const {
    return is_float() ? std::get<double>(data_) : static_cast<double>(as_int());
  }
  const Str& str() const { return *std::get<std::shared_ptr<const Str>>(data_); }
  const std::string& text() const { return str().text; }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  const Undefined& undefined() const { return *std::get<std::shared_ptr<const Undefined>>(data_); }
  template <typename T>
  const std::shared_ptr<T>* get() const {
    return std::get_if<std::shared_ptr<T>>(&data_);
  }
  const Data& data() const { return data_; }

 private:
  Data data_;
};

// list, tuple, and the views that dict.keys(), values() and items() give.
struct List {
  enum class Kind { kList, kTuple, kKeys, kValues, kItems, kGroup };
  Kind kind = Kind::kList;
  int depth = 1;
  int32_t message = -1;  // came from this message's fields
  std::vector<Value> items;
};

struct Dict {
  int depth = 1;
  int32_t message = -1;
  bool is_message = false;                       // an element of `messages` itself
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion

  const Value* find(const Value& key, Budget& budget) const;
  const Value* find(std::string_view key) const;
  // Only while it is being built.
  void set(Value key, Value value, Budget& budget);
  void set(std::string key, Value value);

 private:
  void put(const Value* old, Value key, Value value);
  std::unordered_map<std::string, size_t> index_;  // of string keys
};

struct Range {
  int64_t start = 0, stop = 0, step = 1;
  int64_t size() const;
  int64_t at(int64_t i) const { return start + i * step; }
};

struct Undefined {
  std::string message;    // what using it says
  bool security = false;  // an attribute that the sandbox hides
};

// What Python makes of generator expressions and iterators: can be walked once, is always true, has
// no length. (Its items are made at once, where Python would wait until they are asked for.)
struct Generator {
  std::string type_name = "generator";
  int depth = 1;
  std::vector<Value> items;
  size_t pos = 0;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Evaluator;
struct Statement;

struct Callable {
  std::string name;
  int depth = 1;
  std::function<Value(Evaluator&, const Arguments&)> call;
  const Statement* macro = nullptr;  // that defines it; null: one of jinja's own
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

// The special variable of a for loop; `fetch` gives the next item that passes the loop's condition.
struct Loop {
  std::function<bool(Value&)> fetch;
  std::function<Value(Evaluator&, const Value&)> recurse;
  int64_t index0 = -1;
  int64_t depth0 = 0;
  int depth = 1;
  bool has_size = false;  // no condition and a sized iterable: length needs no look ahead
  int64_t size = 0;
  std::vector<Value> ahead;  // items fetched before their turn, from `ahead_pos`
  size_t ahead_pos = 0;
  Value before, current;
  bool has_changed = false;
  std::vector<Value> changed;

  bool next(Value& out);
  bool peek(Value& out);
  int64_t length();
};

struct Cycler {
  std::vector<Value> items;
  size_t pos = 0;
  int depth = 1;
};

struct Joiner {
  Value separator;
  bool used = false;
};

// Python's type(value).__name__.
std::string type_name(const Value& value);

// What a template may cost. Every step of evaluation, and every byte a string operation touches,
// is charged; going over is an error, never a hang.
struct Budget {
  static constexpr size_t kMaxSteps = 10'000'000;
  static constexpr size_t kBytesPerStep = 64;
  static constexpr size_t kMaxText = size_t{64} << 20;  // of one string, and of the output

  size_t steps = 0;
  void step(size_t n = 1);
  void bytes(size_t n) { step(1 + n / kBytesPerStep); }
};

// An error inside a template, before the place is known; ChatTemplate adds it.
struct Raised {
  ErrorCode code;
  std::string message;
};
template <typename... Parts>
[[noreturn]] void raise(Parts&&... parts) {
  throw Raised{ErrorCode::kInvalidArgument, cat(std::forward<Parts>(parts)...)};
}

bool truthy(const Value& value);
bool equal(const Value& a, const Value& b, Budget& budget);
bool identical(const Value& a, const Value& b);  // Python's `is`
bool hashable(const Value& value);

// How deep containers nest inside; builders refuse more than kMaxValueDepth, which bounds every
// recursion over a value.
constexpr int kMaxValueDepth = 200;
int depth_of(const Value& value);

// The message that a value's bytes came from: its own mark, or that of what it contains if all that
// is marked agrees; else -1.
int32_t message_of(const Value& value);

std::string to_text(const Value& value);  // str()
std::string repr(const Value& value);
Str to_str(const Value& value);  // str() with provenance
std::string float_text(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// json.dumps. Throws: Raised for what JSON cannot hold.
std::string to_json(const Value& value, const JsonStyle& style);

std::string escape_html(std::string_view text);

}  // namespace wick::jinja
