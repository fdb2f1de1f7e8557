// SPDX-License-Identifier: Apache-2.0
// Filters on sequences and mappings.
#include <algorithm>
#include <map>

#include "text/jinja_eval.h"
#include "text/jinja_eval_frame.h"
#include "text/jinja_library.h"
#include "text/jinja_unicode.h"

namespace wick::jinja {
namespace {

Value ignore_case(Evaluator& e, const Value& v) {
  if (!v.is_string()) return v;
  e.budget.step(v.text().size() * 4 / Budget::kBytesPerStep);
  return Value(to_lower(v.text()));
}

// Walks "a.b.0" from a value; a number alone is an index.
class Getter {
 public:
  Getter(Evaluator& e, const Value* attribute, const Value* fallback = nullptr)
      : e_(e), fallback_(fallback) {
    if (!attribute || attribute->is_none()) return;
    if (!attribute->is_string()) {
      parts_.push_back(*attribute);
      return;
    }
    const std::string& text = attribute->text();
    e.budget.step(text.size());
    size_t begin = 0;
    while (true) {
      size_t dot = std::min(text.find('.', begin), text.size());
      std::string part = text.substr(begin, dot - begin);
      bool digits = !part.empty() && part.size() < 18 &&
                    part.find_first_not_of("0123456789") == std::string::npos;
      parts_.push_back(digits ? Value(int64_t{std::stoll(part)}) : Value(part));
      if (dot == text.size()) return;
      begin = dot + 1;
    }
  }

  Value operator()(Value item) const {
    for (const Value& part : parts_) {
      item = e_.item(item, part);
      if (fallback_ && !fallback_->is_none() && item.is_undefined()) item = *fallback_;
    }
    return item;
  }

 private:
  Evaluator& e_;
  const Value* fallback_;
  std::vector<Value> parts_;
};

// Sorts `items` by `keys`, stably; a comparison that Python refuses is an error.
void sort_by(Evaluator& e, std::vector<Value>& items, const std::vector<Value>& keys,
             bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(e, keys[b], keys[a]) : less(e, keys[a], keys[b]);
  });
  std::vector<Value> sorted;
  sorted.reserve(items.size());
  for (size_t i : order) sorted.push_back(items[i]);
  items = std::move(sorted);
}

Value fallback(Evaluator&, const Value& v, const Arguments& a) {
  Bound b(a, "default", {"default_value", "boolean"}, 0);
  if (v.is_undefined() || (b.boolean(1, false) && !truthy(v))) return b.get(0, Value(""));
  return v;
}

Value join(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "join", {"d", "attribute"}, 0);
  Str separator = b.has(0) ? to_str(b[0]) : Str();
  e.budget.bytes(separator.text.size());
  Getter get(e, b.none(1) ? nullptr : &b[1]);
  Str out;
  bool first = true;
  for (const Value& item : e.iterate(v)) {
    if (!first) out.append(separator);
    first = false;
    Str text = to_str(get(item));
    out.append(text);
    e.budget.bytes(text.text.size() + separator.text.size());
    if (out.text.size() > Budget::kMaxText)
      raise("a string is longer than ", Budget::kMaxText, " bytes");
  }
  return e.string(std::move(out));
}

Value length(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "length", {}, 0);
  return Value(e.length(v));
}

Value to_list(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "list", {}, 0);
  return e.list(e.iterate(v));
}

Value items(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "items", {}, 0);
  if (v.is_undefined()) return e.generator({});
  if (!v.is_dict()) raise("Can only get item pairs from a mapping.");
  return e.generator(e.iterate(find_method(v, "items")(e, v, {})));
}

Value dictsort(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "dictsort", {"case_sensitive", "by", "reverse"}, 0);
  std::string by = b.has(1) ? b.string(1).text : "key";
  if (by != "key" && by != "value") raise("You can only sort by either \"key\" or \"value\"");
  if (v.is_undefined()) raise(v.undefined().message);
  if (!v.is_dict()) raise("'", type_name(v), "' object has no attribute 'items'");
  std::vector<Value> entries = e.iterate(find_method(v, "items")(e, v, {}));
  std::vector<Value> keys;
  for (const Value& entry : entries) {
    const Value& key = entry.list().items[by == "key" ? 0 : 1];
    keys.push_back(b.boolean(0, false) ? key : ignore_case(e, key));
  }
  sort_by(e, entries, keys, b.boolean(2, false));
  return e.list(std::move(entries));
}

Value sort(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "sort", {"reverse", "case_sensitive", "attribute"}, 0);
  bool exact = b.boolean(1, false);
  std::vector<Getter> getters;
  if (!b.none(2) && b[2].is_string()) {
    const std::string& text = b[2].text();
    e.budget.step(text.size());
    for (size_t begin = 0; begin <= text.size();) {
      size_t comma = std::min(text.find(',', begin), text.size());
      Value part(text.substr(begin, comma - begin));
      getters.emplace_back(e, &part);
      begin = comma + 1;
    }
  } else {
    getters.emplace_back(e, b.none(2) ? nullptr : &b[2]);
  }
  std::vector<Value> all = e.iterate(v), keys;
  for (const Value& item : all) {
    std::vector<Value> key;
    for (const Getter& get : getters) {
      Value part = get(item);
      key.push_back(exact ? part : ignore_case(e, part));
    }
    keys.push_back(e.list(std::move(key)));
  }
  sort_by(e, all, keys, b.boolean(0, false));
  return e.list(std::move(all));
}

Value unique(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "unique", {"case_sensitive", "attribute"}, 0);
  Getter get(e, b.none(1) ? nullptr : &b[1]);
  bool exact = b.boolean(0, false);
  std::vector<Value> out;
  Dict seen;
  for (const Value& item : e.iterate(v)) {
    Value key = get(item);
    if (!exact) key = ignore_case(e, key);
    if (!hashable(key)) raise("unhashable type: '", type_name(key), "'");
    e.budget.step();
    if (seen.find(key, e.budget)) continue;
    seen.set(key, Value(), e.budget);
    out.push_back(item);
  }
  return e.generator(std::move(out));
}

Value extreme(Evaluator& e, const Value& v, const Arguments& a, bool largest) {
  Bound b(a, largest ? "max" : "min", {"case_sensitive", "attribute"}, 0);
  Getter get(e, b.none(1) ? nullptr : &b[1]);
  bool exact = b.boolean(0, false);
  std::vector<Value> all = e.iterate(v);
  if (all.empty()) return make_undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key;
  for (size_t i = 0; i < all.size(); ++i) {
    Value key = get(all[i]);
    if (!exact) key = ignore_case(e, key);
    if (i == 0 || (largest ? less(e, best_key, key) : less(e, key, best_key))) {
      best = i;
      best_key = key;
    }
  }
  return all[best];
}

Value first(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "first", {}, 0);
  if (const auto* generator = v.get<Generator>()) {
    Generator& g = **generator;
    if (g.pos < g.items.size()) return g.items[g.pos++];
    return make_undefined("No first item, sequence was empty.");
  }
  std::vector<Value> all = e.iterate(v);
  return all.empty() ? make_undefined("No first item, sequence was empty.") : all.front();
}

Value last(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "last", {}, 0);
  if (v.is<std::shared_ptr<Generator>>()) raise("'", type_name(v), "' object is not reversible");
  std::vector<Value> all = e.iterate(v);
  return all.empty() ? make_undefined("No last item, sequence was empty.") : all.back();
}

Value reverse(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "reverse", {}, 0);
  if (v.is_string()) return slice(e, v, Value(), Value(), Value(-1));
  std::vector<Value> all = e.iterate(v);
  std::reverse(all.begin(), all.end());
  if (v.is<std::shared_ptr<Generator>>()) return e.list(std::move(all));
  return e.generator(std::move(all), type_name(v) + "_reverseiterator");
}

Value sum(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "sum", {"attribute", "start"}, 0);
  Getter get(e, b.none(0) ? nullptr : &b[0]);
  Value total = b.get(1, Value(0));
  if (total.is_string()) raise("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : e.iterate(v)) total = binary_operator(e, "+", total, get(item));
  return total;
}

Value batch(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "batch", {"linecount", "fill_with"}, 1);
  int64_t count = b.integer(0, 1);
  std::vector<Value> out, row;
  for (Value& item : e.iterate(v)) {
    if (static_cast<int64_t>(row.size()) == count) {
      out.push_back(e.list(std::move(row)));
      row.clear();
    }
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    while (!b.none(1) && static_cast<int64_t>(row.size()) < count) {
      e.budget.step();
      row.push_back(b[1]);
    }
    out.push_back(e.list(std::move(row)));
  }
  return e.generator(std::move(out));
}

Value slices(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "slice", {"slices", "fill_with"}, 1);
  int64_t count = b.integer(0, 1);
  std::vector<Value> all = e.iterate(v), out;
  if (count == 0) raise("integer division or modulo by zero");
  if (count > 0) e.budget.step(static_cast<size_t>(count));
  int64_t n = static_cast<int64_t>(all.size());
  int64_t per = count > 0 ? n / count : 0, extra = count > 0 ? n % count : 0, pos = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t size = per + (i < extra ? 1 : 0);
    std::vector<Value> part(all.begin() + pos, all.begin() + pos + size);
    pos += size;
    if (!b.none(1) && i >= extra) part.push_back(b[1]);
    out.push_back(e.list(std::move(part)));
  }
  return e.generator(std::move(out));
}

Value groupby(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  Getter get(e, &b[0], b.none(1) ? nullptr : &b[1]);
  bool exact = b.boolean(2, false);
  std::vector<Value> all = e.iterate(v), keys, out;
  auto key_of = [&](const Value& item) { return exact ? get(item) : ignore_case(e, get(item)); };
  for (const Value& item : all) keys.push_back(key_of(item));
  sort_by(e, all, keys, false);
  for (size_t i = 0; i < all.size();) {
    Value key = key_of(all[i]), shown = get(all[i]);
    std::vector<Value> group;
    while (i < all.size() && equal(key_of(all[i]), key, e.budget)) group.push_back(all[i++]);
    if (group.empty()) group.push_back(all[i++]);  // not-a-number equals nothing, itself neither
    out.push_back(e.list({shown, e.list(std::move(group))}, List::Kind::kGroup));
  }
  return e.list(std::move(out));
}

Value map(Evaluator& e, const Value& v, const Arguments& a) {
  if (!truthy(v)) return e.generator({});
  std::vector<Value> out;
  const Value* attribute = nullptr;
  const Value* missing = nullptr;
  for (const auto& [name, value] : a.named) {
    if (name == "attribute") attribute = &value;
    if (name == "default") missing = &value;
  }
  if (a.positional.empty() && attribute) {
    for (const auto& [name, value] : a.named)
      if (name != "attribute" && name != "default")
        raise("Unexpected keyword argument '", name, "'");
    Getter get(e, attribute, missing);
    for (const Value& item : e.iterate(v)) out.push_back(get(item));
    return e.generator(std::move(out));
  }
  if (a.positional.empty()) raise("map requires a filter argument");
  if (!a.positional[0].is_string()) raise("map: the name of a filter must be a string");
  Arguments rest;
  rest.positional.assign(a.positional.begin() + 1, a.positional.end());
  rest.named = a.named;
  for (const Value& item : e.iterate(v))
    out.push_back(e.filter(a.positional[0].text(), item, rest));
  return e.generator(std::move(out));
}

Value select(Evaluator& e, const Value& v, const Arguments& a, bool wanted, bool by_attribute) {
  if (!truthy(v)) return e.generator({});
  size_t offset = by_attribute ? 1 : 0;
  if (by_attribute && a.positional.empty()) raise("Missing parameter for attribute name");
  Getter get(e, by_attribute ? &a.positional[0] : nullptr);
  Arguments rest;
  std::string name;
  if (a.positional.size() > offset) {
    const Value& given = a.positional[offset];
    if (!given.is_string()) raise("the name of a test must be a string");
    name = given.text();
    rest.positional.assign(a.positional.begin() + static_cast<ptrdiff_t>(offset) + 1,
                           a.positional.end());
    rest.named = a.named;
  }
  std::vector<Value> out;
  for (const Value& item : e.iterate(v)) {
    Value subject = get(item);
    bool passes = name.empty() ? truthy(subject) : e.test(name, subject, rest);
    if (passes == wanted) out.push_back(item);
  }
  return e.generator(std::move(out));
}

Value attr(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "attr", {"name"}, 1);
  const std::string& name = b.string(0).text;
  // Attributes only, never the items of a mapping.
  if (v.is_dict() && !find_method(v, name) && !is_mutator(v, name))
    return make_undefined(cat("'dict object' has no attribute '", name, "'"));
  return e.attribute(v, name);
}

}  // namespace

#define WICK_FILTER(...) [](Evaluator& e, const Value& v, const Arguments& a) { __VA_ARGS__ }

Filter find_sequence_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> kFilters = {
      {"default", fallback},
      {"d", fallback},
      {"join", join},
      {"length", length},
      {"count", length},
      {"list", to_list},
      {"items", items},
      {"dictsort", dictsort},
      {"sort", sort},
      {"unique", unique},
      {"min", WICK_FILTER(return extreme(e, v, a, false);)},
      {"max", WICK_FILTER(return extreme(e, v, a, true);)},
      {"first", first},
      {"last", last},
      {"reverse", reverse},
      {"sum", sum},
      {"batch", batch},
      {"slice", slices},
      {"groupby", groupby},
      {"map", map},
      {"select", WICK_FILTER(return select(e, v, a, true, false);)},
      {"reject", WICK_FILTER(return select(e, v, a, false, false);)},
      {"selectattr", WICK_FILTER(return select(e, v, a, true, true);)},
      {"rejectattr", WICK_FILTER(return select(e, v, a, false, true);)},
      {"attr", attr},
  };
  auto it = kFilters.find(name);
  return it == kFilters.end() ? nullptr : it->second;
}

#undef WICK_FILTER

}  // namespace wick::jinja
