// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_value.h"

#include <algorithm>

namespace wick::jinja {
namespace {

constexpr size_t kIndexFrom = 8;  // below, a scan is as fast as a hash

template <typename T>
using Ref = std::shared_ptr<T>;

}  // namespace

void Budget::step(size_t n) {
  steps += n;
  if (steps > kMaxSteps)
    raise("the template needs more than ", kMaxSteps,
          " steps: it loops too much or builds too large values");
}

void Str::append(const Str& other) {
  if (other.text.empty()) return;
  if (runs.empty() && !text.empty()) runs.push_back({text.size()});
  size_t base = text.size();
  text += other.text;
  if (other.runs.empty()) runs.push_back({text.size()});
  for (Run run : other.runs) {
    run.end += base;
    runs.push_back(run);
  }
}

void Str::append(std::string_view literal) {
  if (literal.empty()) return;
  if (runs.empty() && !text.empty()) runs.push_back({text.size()});
  text += literal;
  runs.push_back({text.size()});
}

Str Str::substr(size_t begin, size_t end) const {
  Str out;
  out.text = text.substr(begin, end - begin);
  out.markup = markup;
  // A search, because a string of many runs is cut into many pieces.
  auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                              [](size_t at, const Run& r) { return at < r.end; });
  for (size_t from = begin; from < end && run != runs.end(); ++run) {
    out.runs.push_back(*run);
    out.runs.back().end = std::min(run->end, end) - begin;
    from = run->end;
  }
  return out;
}

int32_t Str::data_message() const {
  for (const Run& run : runs)
    if (run.data >= 0) return run.data;
  return -1;
}

bool Value::is_list() const { return is_sequence() && list().kind == List::Kind::kList; }
bool Value::is_tuple() const {
  return is_sequence() && (list().kind == List::Kind::kTuple || list().kind == List::Kind::kGroup);
}

const Value* Dict::find(std::string_view key) const {
  if (entries.size() > kIndexFrom) {
    auto it = index_.find(std::string(key));
    return it == index_.end() ? nullptr : &entries[it->second].second;
  }
  for (const auto& [k, v] : entries)
    if (k.is_string() && k.text() == key) return &v;
  return nullptr;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  if (key.is_string()) {
    budget.step(key.text().size() * std::min(entries.size(), kIndexFrom) / Budget::kBytesPerStep);
    return find(std::string_view(key.text()));
  }
  for (const auto& [k, v] : entries)
    if (equal(k, key, budget)) return &v;
  return nullptr;
}

void Dict::set(Value key, Value value, Budget& budget) {
  const Value* old = find(key, budget);
  put(old, std::move(key), std::move(value));
}

void Dict::set(std::string key, Value value) {
  const Value* old = find(std::string_view(key));
  put(old, Value(std::move(key)), std::move(value));
}

void Dict::put(const Value* old, Value key, Value value) {
  depth = std::max(depth, 1 + std::max(depth_of(key), depth_of(value)));
  if (old) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() == kIndexFrom + 1) {
    for (size_t i = 0; i < entries.size(); ++i)
      if (entries[i].first.is_string()) index_[entries[i].first.text()] = i;
  } else if (entries.size() > kIndexFrom && entries.back().first.is_string()) {
    index_[entries.back().first.text()] = entries.size() - 1;
  }
}

int64_t Range::size() const {
  // In 128 bits, because stop - start of two int64 needs 65.
  __int128 span =
      step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  __int128 width = step > 0 ? step : -static_cast<__int128>(step);
  __int128 count = span <= 0 ? 0 : (span + width - 1) / width;
  return static_cast<int64_t>(std::min<__int128>(count, INT64_MAX));
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [k, v] : attributes)
    if (k == name) return &v;
  return nullptr;
}

void Namespace::set(const std::string& name, Value value) {
  for (auto& [k, v] : attributes)
    if (k == name) {
      v = std::move(value);
      return;
    }
  attributes.emplace_back(name, std::move(value));
}

bool Loop::peek(Value& out) {
  if (ahead_pos == ahead.size()) {
    ahead.clear();
    ahead_pos = 0;
    Value item;
    if (!fetch(item)) return false;
    ahead.push_back(std::move(item));
  }
  out = ahead[ahead_pos];
  return true;
}

bool Loop::next(Value& out) {
  if (ahead_pos < ahead.size()) {
    out = ahead[ahead_pos++];
  } else if (!fetch(out)) {
    return false;
  }
  ++index0;
  before = std::move(current);
  current = out;
  return true;
}

int64_t Loop::length() {
  if (!has_size) {
    for (Value item; fetch(item);) ahead.push_back(item);
    size = index0 + 1 + static_cast<int64_t>(ahead.size() - ahead_pos);
    has_size = true;
  }
  return size;
}

std::string type_name(const Value& value) {
  struct {
    std::string operator()(const Ref<const Undefined>&) const { return "Undefined"; }
    std::string operator()(None) const { return "NoneType"; }
    std::string operator()(bool) const { return "bool"; }
    std::string operator()(int64_t) const { return "int"; }
    std::string operator()(double) const { return "float"; }
    std::string operator()(const Ref<const Str>& s) const { return s->markup ? "Markup" : "str"; }
    std::string operator()(const Ref<const List>& l) const {
      switch (l->kind) {
        case List::Kind::kList:
          return "list";
        case List::Kind::kTuple:
          return "tuple";
        case List::Kind::kKeys:
          return "dict_keys";
        case List::Kind::kValues:
          return "dict_values";
        case List::Kind::kItems:
          return "dict_items";
        case List::Kind::kGroup:
          return "_GroupTuple";
      }
      return "list";
    }
    std::string operator()(const Ref<const Dict>&) const { return "dict"; }
    std::string operator()(const Ref<const Range>&) const { return "range"; }
    std::string operator()(const Ref<Generator>& g) const { return g->type_name; }
    std::string operator()(const Ref<const Callable>& c) const {
      return c->macro ? "Macro" : "function";
    }
    std::string operator()(const Ref<Namespace>&) const { return "TemplateNamespace"; }
    std::string operator()(const Ref<Loop>&) const { return "LoopContext"; }
    std::string operator()(const Ref<Cycler>&) const { return "Cycler"; }
    std::string operator()(const Ref<Joiner>&) const { return "Joiner"; }
  } name;
  return std::visit(name, value.data());
}

bool truthy(const Value& value) {
  struct {
    bool operator()(const Ref<const Undefined>&) const { return false; }
    bool operator()(None) const { return false; }
    bool operator()(bool b) const { return b; }
    bool operator()(int64_t i) const { return i != 0; }
    bool operator()(double d) const { return d != 0; }
    bool operator()(const Ref<const Str>& s) const { return !s->text.empty(); }
    bool operator()(const Ref<const List>& l) const { return !l->items.empty(); }
    bool operator()(const Ref<const Dict>& d) const { return !d->entries.empty(); }
    bool operator()(const Ref<const Range>& r) const { return r->size() > 0; }
    bool operator()(const Ref<Generator>&) const { return true; }
    bool operator()(const Ref<const Callable>&) const { return true; }
    bool operator()(const Ref<Namespace>&) const { return true; }
    bool operator()(const Ref<Loop>& l) const { return l->length() > 0; }
    bool operator()(const Ref<Cycler>&) const { return true; }
    bool operator()(const Ref<Joiner>&) const { return true; }
  } test;
  return std::visit(test, value.data());
}

bool identical(const Value& a, const Value& b) {
  if (a.data().index() != b.data().index()) return false;
  return std::visit(
      [&](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        const T& y = std::get<T>(b.data());
        if constexpr (std::is_same_v<T, None>) {
          return true;
        } else if constexpr (std::is_same_v<T, Ref<const Str>>) {
          // CPython shares short strings and literals; an equal text is the nearest to that.
          return x == y || x->text == y->text;
        } else {
          return x == y;
        }
      },
      a.data());
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_float() == b.as_float();
    return a.as_int() == b.as_int();
  }
  if (a.data().index() != b.data().index()) return false;
  if (a.is_string()) {
    budget.bytes(std::min(a.text().size(), b.text().size()));
    return a.text() == b.text();
  }
  if (a.is_sequence()) {
    const List &x = a.list(), &y = b.list();
    if (&x == &y) return true;
    if (x.kind != y.kind && !(a.is_tuple() && b.is_tuple())) return false;
    if (x.kind == List::Kind::kValues || x.items.size() != y.items.size()) return false;
    for (size_t i = 0; i < x.items.size(); ++i)
      if (!equal(x.items[i], y.items[i], budget)) return false;
    return true;
  }
  if (a.is_dict()) {
    const Dict &x = a.dict(), &y = b.dict();
    if (&x == &y) return true;
    if (x.entries.size() != y.entries.size()) return false;
    for (const auto& [k, v] : x.entries) {
      const Value* other = y.find(k, budget);
      if (!other || !equal(v, *other, budget)) return false;
    }
    return true;
  }
  if (const auto* x = a.get<const Range>()) {
    const auto* y = b.get<const Range>();
    int64_t n = (*x)->size();
    return n == (*y)->size() &&
           (n == 0 || ((*x)->start == (*y)->start && (n == 1 || (*x)->step == (*y)->step)));
  }
  return identical(a, b);
}

bool hashable(const Value& value) {
  if (value.is_dict()) return false;
  if (!value.is_sequence()) return true;
  if (!value.is_tuple()) return false;
  // Deep tuples as keys could be made to cost exponential time to compare.
  if (value.list().depth > 8) return false;
  return std::all_of(value.list().items.begin(), value.list().items.end(), hashable);
}

int depth_of(const Value& value) {
  return std::visit(
      [](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, Ref<const List>> || std::is_same_v<T, Ref<const Dict>> ||
                      std::is_same_v<T, Ref<Generator>> || std::is_same_v<T, Ref<const Callable>> ||
                      std::is_same_v<T, Ref<Loop>> || std::is_same_v<T, Ref<Cycler>>) {
          return x->depth;
        } else {
          return 0;
        }
      },
      value.data());
}

int32_t message_of(const Value& value) {
  if (value.is_string()) return value.str().data_message();
  if (value.is_sequence()) return value.list().message;
  if (!value.is_dict()) return -1;
  const Dict& dict = value.dict();
  if (dict.message >= 0) return dict.message;
  int32_t found = -1;
  for (const auto& entry : dict.entries) {
    const Value& v = entry.second;
    int32_t m = v.is_dict() ? v.dict().message : message_of(v);
    if (m < 0 && v.is_string() && !v.str().runs.empty()) m = v.str().runs[0].handling;
    if (m < 0) continue;
    if (found >= 0 && found != m) return -1;
    found = m;
  }
  return found;
}

}  // namespace wick::jinja
