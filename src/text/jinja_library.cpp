// SPDX-License-Identifier: Apache-2.0
// Binding of arguments, methods of containers, global functions.
#include "text/jinja_library.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "text/jinja_eval.h"
#include "text/jinja_eval_frame.h"

namespace wick::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox

// --- methods of dict, list and the rest
// -----------------------------------------------------------

Value view(Evaluator& e, const Value& self, const Arguments& a, List::Kind kind) {
  Bound b(a, "this method", {}, 0);
  std::vector<Value> items;
  for (const auto& [k, v] : self.dict().entries) {
    if (kind == List::Kind::kKeys)
      items.push_back(k);
    else if (kind == List::Kind::kValues)
      items.push_back(v);
    else
      items.push_back(e.list({k, v}, List::Kind::kTuple));
  }
  return e.list(std::move(items), kind);
}

Value dict_get(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "get", {"key", "default"}, 1);
  if (!hashable(b[0])) raise("unhashable type: '", type_name(b[0]), "'");
  const Value* found = self.dict().find(b[0], e.budget);
  return found ? *found : b.get(1, Value());
}

Value copy(Evaluator&, const Value& self, const Arguments& a) {
  Bound b(a, "copy", {}, 0);
  return self;
}

Value list_index(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "index", {"value"}, 1);
  const auto& items = self.list().items;
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], b[0], e.budget)) return Value(i);
  raise(repr(b[0]), " is not in list");
}

Value list_count(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "count", {"value"}, 1);
  int64_t n = 0;
  for (const Value& item : self.list().items) n += equal(item, b[0], e.budget);
  return Value(n);
}

Value loop_cycle(Evaluator&, const Value& self, const Arguments& a) {
  if (a.positional.empty()) raise("no items for cycling given");
  const Loop& loop = **self.get<Loop>();
  return a.positional[static_cast<size_t>(loop.index0) % a.positional.size()];
}

Value loop_changed(Evaluator& e, const Value& self, const Arguments& a) {
  Loop& loop = **self.get<Loop>();
  bool same = loop.has_changed && loop.changed.size() == a.positional.size();
  for (size_t i = 0; same && i < loop.changed.size(); ++i)
    same = equal(loop.changed[i], a.positional[i], e.budget);
  if (same) return Value(false);
  for (const Value& v : a.positional) {
    loop.depth = std::max(loop.depth, depth_of(v) + 1);
    e.check_depth(loop.depth);
  }
  loop.changed = a.positional;
  loop.has_changed = true;
  return Value(true);
}

Value cycler_next(Evaluator&, const Value& self, const Arguments&) {
  Cycler& c = **self.get<Cycler>();
  Value out = c.items[c.pos];
  c.pos = (c.pos + 1) % c.items.size();
  return out;
}

Value cycler_reset(Evaluator&, const Value& self, const Arguments&) {
  (*self.get<Cycler>())->pos = 0;
  return Value();
}

Value is_integer(Evaluator&, const Value& self, const Arguments&) {
  double d = self.as_float();
  return Value(d == static_cast<double>(static_cast<int64_t>(std::clamp(d, -9e18, 9e18))));
}

// --- global functions
// -----------------------------------------------------------------------------

Value global_range(Evaluator&, const Value&, const Arguments& a) {
  Bound b(a, "range", {"start", "stop", "step"}, 1);
  Range r;
  if (b.has(1)) {
    r.start = b.integer(0, 0);
    r.stop = b.integer(1, 0);
  } else {
    r.stop = b.integer(0, 0);
  }
  r.step = b.integer(2, 1);
  if (r.step == 0) raise("range() arg 3 must not be zero");
  if (r.size() > kMaxRange)
    raise("Range too big. The sandbox blocks ranges larger than MAX_RANGE (", kMaxRange, ").");
  return Value(std::make_shared<const Range>(r));
}

// What dict(…) and namespace(…) take: a mapping or pairs, and named values.
std::vector<std::pair<Value, Value>> pairs(Evaluator& e, const Arguments& a, const char* function) {
  std::vector<std::pair<Value, Value>> out;
  if (a.positional.size() > 1)
    raise(function, " expected at most 1 argument, got ", a.positional.size());
  if (!a.positional.empty()) {
    const Value& from = a.positional[0];
    if (from.is_dict()) {
      out = from.dict().entries;
    } else {
      size_t i = 0;
      for (const Value& pair : e.iterate(from)) {
        std::vector<Value> two = e.iterate(pair);
        if (two.size() != 2)
          raise("dictionary update sequence element #", i, " has length ", two.size(),
                "; 2 is required");
        if (!hashable(two[0])) raise("unhashable type: '", type_name(two[0]), "'");
        out.emplace_back(two[0], two[1]);
        ++i;
      }
    }
  }
  for (const auto& [name, value] : a.named) out.emplace_back(Value(name), value);
  e.budget.step(out.size());
  return out;
}

Value global_dict(Evaluator& e, const Value&, const Arguments& a) {
  auto made = std::make_shared<Dict>();
  if (!a.positional.empty() && a.positional[0].is_dict())
    made->message = a.positional[0].dict().message;
  for (auto& [key, value] : pairs(e, a, "dict")) made->set(key, value, e.budget);
  return e.dict(made);
}

Value global_namespace(Evaluator& e, const Value&, const Arguments& a) {
  Value made = e.new_namespace();
  Namespace& ns = **made.get<Namespace>();
  for (auto& [key, value] : pairs(e, a, "namespace")) {
    if (!key.is_string()) raise("attribute names of a namespace must be strings");
    check_namespace_name(key.text());
    e.budget.step(1 + ns.attributes.size() / 16);
    ns.set(key.text(), value);
  }
  return made;
}

Value global_cycler(Evaluator& e, const Value&, const Arguments& a) {
  if (a.positional.empty()) raise("at least one item has to be provided");
  auto made = std::make_shared<Cycler>();
  made->items = a.positional;
  for (const Value& v : made->items) made->depth = std::max(made->depth, depth_of(v) + 1);
  e.check_depth(made->depth);
  return Value(std::move(made));
}

Value global_joiner(Evaluator&, const Value&, const Arguments& a) {
  Bound b(a, "joiner", {"sep"}, 0);
  auto made = std::make_shared<Joiner>();
  made->separator = b.has(0) ? Value(b.string(0)) : Value(", ");
  return Value(std::move(made));
}

Value global_raise(Evaluator&, const Value&, const Arguments& a) {
  Bound b(a, "raise_exception", {"message"}, 1);
  raise(to_text(b[0]));
}

Value global_strftime(Evaluator& e, const Value&, const Arguments& a) {
  Bound b(a, "strftime_now", {"format"}, 1);
  const std::string& given = b.string(0).text;
  if (given.size() > 1000) raise("strftime_now: the format is longer than 1000 bytes");
  // A time without zone prints none, and has no fraction.
  std::string format;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] != '%' || i + 1 == given.size()) {
      format += given[i];
      continue;
    }
    char c = given[++i];
    if (c == 'f')
      format += "000000";
    else if (c != 'z' && c != 'Z')
      format += {'%', c};
  }
  if (format.empty()) return Value("");
  std::string out(format.size() * 32 + 64, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &e.now()));
  return Value(out);
}

Value refused(Evaluator&, const Value&, const Arguments&) {
  raise("lipsum is random and not supported in chat templates");
}

}  // namespace

Method find_method(const Value& self, std::string_view name) {
  using Table = std::map<std::string_view, Method>;
  static const Table kDict = {
      {"keys", [](Evaluator& e, const Value& s,
                  const Arguments& a) { return view(e, s, a, List::Kind::kKeys); }},
      {"values", [](Evaluator& e, const Value& s,
                    const Arguments& a) { return view(e, s, a, List::Kind::kValues); }},
      {"items", [](Evaluator& e, const Value& s,
                   const Arguments& a) { return view(e, s, a, List::Kind::kItems); }},
      {"get", dict_get},
      {"copy", copy},
  };
  static const Table kList = {{"index", list_index}, {"count", list_count}, {"copy", copy}};
  static const Table kLoop = {{"cycle", loop_cycle}, {"changed", loop_changed}};
  static const Table kCycler = {{"next", cycler_next}, {"reset", cycler_reset}};
  static const Table kFloat = {{"is_integer", is_integer}};
  const Table* table = nullptr;
  if (self.is_string()) return find_string_method(name);
  if (self.is_dict())
    table = &kDict;
  else if (self.is_list())
    table = &kList;
  else if (self.is_tuple() && name != "copy")
    table = &kList;
  else if (self.is<std::shared_ptr<Loop>>())
    table = &kLoop;
  else if (self.is<std::shared_ptr<Cycler>>())
    table = &kCycler;
  else if (self.is_float())
    table = &kFloat;
  if (!table) return nullptr;
  auto it = table->find(name);
  return it == table->end() ? nullptr : it->second;
}

bool is_mutator(const Value& self, std::string_view name) {
  auto among = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (self.is_dict()) return among({"clear", "pop", "popitem", "setdefault", "update"});
  if (self.is_list())
    return among({"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"});
  return false;
}

std::optional<Value> find_global(std::string_view name) {
  static const std::map<std::string_view, Method> kGlobals = {
      {"range", global_range},
      {"dict", global_dict},
      {"namespace", global_namespace},
      {"cycler", global_cycler},
      {"joiner", global_joiner},
      {"raise_exception", global_raise},
      {"lipsum", refused},
      {"strftime_now", global_strftime},
  };
  auto it = kGlobals.find(name);
  if (it == kGlobals.end()) return std::nullopt;
  auto function = std::make_shared<Callable>();
  function->name = name;
  function->call = [method = it->second](Evaluator& e, const Arguments& a) {
    return method(e, Value(), a);
  };
  return Value(std::shared_ptr<const Callable>(std::move(function)));
}

// --- arguments
// ------------------------------------------------------------------------------------

Bound::Bound(const Arguments& arguments, const char* function,
             std::initializer_list<const char*> parameters, size_t required)
    : function_(function), parameters_(parameters), values_(parameters.size(), nullptr) {
  if (arguments.positional.size() > parameters_.size())
    raise(function, "() takes at most ", parameters_.size(), " argument(s) (",
          arguments.positional.size(), " given)");
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    size_t i = 0;
    while (i < parameters_.size() && name != parameters_[i]) ++i;
    if (i == parameters_.size())
      raise(function, "() got an unexpected keyword argument '", name, "'");
    if (values_[i]) raise(function, "() got multiple values for argument '", name, "'");
    values_[i] = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!values_[i]) raise(function, "() missing a required argument: '", parameters_[i], "'");
}

const Str& Bound::string(size_t i) const {
  if (values_[i]->is_undefined()) raise(values_[i]->undefined().message);
  if (!values_[i]->is_string())
    raise(function_, "() argument '", parameters_[i], "' must be str, not ",
          type_name(*values_[i]));
  return values_[i]->str();
}

int64_t Bound::integer(size_t i, int64_t fallback) const {
  if (!values_[i]) return fallback;
  if (values_[i]->is_undefined()) raise(values_[i]->undefined().message);
  if (!values_[i]->is_int())
    raise("'", type_name(*values_[i]), "' object cannot be interpreted as an integer");
  return values_[i]->as_int();
}

bool Bound::boolean(size_t i, bool fallback) const {
  return values_[i] ? truthy(*values_[i]) : fallback;
}

}  // namespace wick::jinja
