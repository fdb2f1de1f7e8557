// SPDX-License-Identifier: Apache-2.0
// Expressions, and access to values: attributes, items, iteration, calls.
#include <algorithm>

#include "text/jinja_eval.h"
#include "text/jinja_eval_frame.h"
#include "text/jinja_library.h"
#include "text/jinja_unicode.h"

namespace wick::jinja {
namespace {

std::string object_repr(const Value& value) {
  if (value.is_none()) return "None";
  return type_name(value) + " object";
}

Value no_attribute(const Value& object, const std::string& name) {
  return make_undefined(cat("'", object_repr(object), "' has no attribute ", repr(Value(name))));
}

Value unsafe(const Value& object, const std::string& name) {
  return make_undefined(
      cat("access to attribute '", name, "' of '", type_name(object), "' object is unsafe."), true);
}

[[noreturn]] void use_undefined(const Value& value) { raise(value.undefined().message); }

std::optional<Value> loop_property(Loop& loop, std::string_view name) {
  Value item;
  if (name == "index") return Value(loop.index0 + 1);
  if (name == "index0") return Value(loop.index0);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "last") return Value(!loop.peek(item));
  if (name == "length") return Value(loop.length());
  if (name == "revindex") return Value(loop.length() - loop.index0);
  if (name == "revindex0") return Value(loop.length() - loop.index0 - 1);
  if (name == "depth") return Value(loop.depth0 + 1);
  if (name == "depth0") return Value(loop.depth0);
  if (name == "previtem")
    return loop.index0 == 0 ? make_undefined("there is no previous item") : loop.before;
  if (name == "nextitem") return loop.peek(item) ? item : make_undefined("there is no next item");
  return std::nullopt;
}

}  // namespace

void check_namespace_name(const std::string& name) {
  if (!name.empty() && name[0] == '_')
    raise("Chat templates cannot store underscore-prefixed attributes on a namespace, but got '",
          name, "'. Please rename the attribute.");
}

Value Evaluator::evaluate(const Expr& e, const FramePtr& frame) {
  Enter enter(*this);
  line_ = e.line;
  switch (e.kind) {
    case ExprKind::kConst:
      return e.value;
    case ExprKind::kName:
      return lookup(e.name, frame);
    case ExprKind::kNamespaceRef:
      return attribute(lookup(e.name, frame), e.attribute);
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict:
      return evaluate_container(e, frame);
    case ExprKind::kAttribute:
      return attribute(evaluate(*e.children[0], frame), e.name);
    case ExprKind::kItem: {
      Value object = evaluate(*e.children[0], frame);
      return item(object, evaluate(*e.children[1], frame));
    }
    case ExprKind::kSlice:
      return evaluate_slice(e, frame);
    case ExprKind::kCall:
      return evaluate_call(e, frame);
    case ExprKind::kFilter: {
      Value input = e.children[0] ? evaluate(*e.children[0], frame) : frame->input;
      return filter(e.name, input, arguments(e, frame));
    }
    case ExprKind::kTest: {
      Value input = evaluate(*e.children[0], frame);
      return Value(test(e.name, input, arguments(e, frame)));
    }
    case ExprKind::kNot:
      return Value(!truthy(evaluate(*e.children[0], frame)));
    case ExprKind::kNegative:
    case ExprKind::kPositive: {
      Value operand = evaluate(*e.children[0], frame);
      if (operand.is_undefined()) use_undefined(operand);
      return negate(operand, e.kind == ExprKind::kNegative);
    }
    case ExprKind::kBinary: {
      Value left = evaluate(*e.children[0], frame);
      Value right = evaluate(*e.children[1], frame);
      line_ = e.line;
      return binary_operator(*this, e.name, left, right);
    }
    case ExprKind::kConcat: {
      Str text;
      for (const ExprPtr& child : e.children) {
        text.append(to_str(evaluate(*child, frame)));
        text.markup = false;
        if (text.text.size() > Budget::kMaxText)
          raise("a string is longer than ", Budget::kMaxText, " bytes");
      }
      return string(std::move(text));
    }
    case ExprKind::kCompare:
      return evaluate_compare(e, frame);
    case ExprKind::kAnd: {
      Value left = evaluate(*e.children[0], frame);
      return truthy(left) ? evaluate(*e.children[1], frame) : left;
    }
    case ExprKind::kOr: {
      Value left = evaluate(*e.children[0], frame);
      return truthy(left) ? left : evaluate(*e.children[1], frame);
    }
    case ExprKind::kCondition:
      if (truthy(evaluate(*e.children[0], frame))) return evaluate(*e.children[1], frame);
      if (e.children[2]) return evaluate(*e.children[2], frame);
      return make_undefined(cat("the inline if-expression on line ", e.line,
                                " evaluated to false and no else section was defined."));
  }
  return Value();
}

Value Evaluator::lookup(const std::string& name, const FramePtr& frame) {
  for (const Frame* f = frame.get(); f; f = f->parent.get()) {
    budget.step(f->variables.size() / 16);
    for (const auto& [known, value] : f->variables)
      if (known == name) return value ? *value : make_undefined(cat("'", name, "' is undefined"));
  }
  for (const auto& [known, value] : context_)
    if (known == name) return value;
  if (auto global = find_global(name)) return *global;
  return make_undefined(cat("'", name, "' is undefined"));
}

Value Evaluator::evaluate_container(const Expr& e, const FramePtr& frame) {
  if (e.kind != ExprKind::kDict) {
    std::vector<Value> items;
    items.reserve(e.children.size());
    for (const ExprPtr& child : e.children) items.push_back(evaluate(*child, frame));
    return list(std::move(items),
                e.kind == ExprKind::kList ? List::Kind::kList : List::Kind::kTuple);
  }
  auto made = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
    Value key = evaluate(*e.children[i], frame);
    if (!hashable(key)) raise("unhashable type: '", type_name(key), "'");
    made->set(std::move(key), evaluate(*e.children[i + 1], frame), budget);
  }
  return dict(made);
}

Value Evaluator::evaluate_slice(const Expr& e, const FramePtr& frame) {
  Value object = evaluate(*e.children[0], frame);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i)
    if (e.children[i + 1]) bounds[i] = evaluate(*e.children[i + 1], frame);
  if (object.is_undefined()) use_undefined(object);
  return slice(*this, object, bounds[0], bounds[1], bounds[2]);
}

Value Evaluator::evaluate_compare(const Expr& e, const FramePtr& frame) {
  Value left = evaluate(*e.children[0], frame);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.children[i + 1], frame);
    line_ = e.line;
    if (!compare(*this, e.operators[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Arguments Evaluator::arguments(const Expr& e, const FramePtr& frame) {
  Arguments out;
  for (const ExprPtr& a : e.arguments) out.positional.push_back(evaluate(*a, frame));
  for (const auto& [name, a] : e.named) out.named.emplace_back(name, evaluate(*a, frame));
  if (e.star)
    for (Value& v : iterate(evaluate(*e.star, frame))) out.positional.push_back(std::move(v));
  if (e.double_star) {
    Value more = evaluate(*e.double_star, frame);
    if (!more.is_dict()) raise("argument after ** must be a mapping, not ", type_name(more));
    for (const auto& [key, value] : more.dict().entries) {
      if (!key.is_string()) raise("keywords must be strings");
      for (const auto& given : out.named)
        if (given.first == key.text())
          raise("got multiple values for keyword argument '", key.text(), "'");
      budget.step(1 + out.named.size() / 16);
      out.named.emplace_back(key.text(), value);
    }
  }
  return out;
}

Value Evaluator::evaluate_call(const Expr& e, const FramePtr& frame, const Value* caller) {
  const Expr& callee = *e.children[0];
  if (callee.kind == ExprKind::kAttribute) {
    // A method is called without making a value of it first.
    Value object = evaluate(*callee.children[0], frame);
    if (Method method = find_method(object, callee.name)) {
      Arguments given = arguments(e, frame);
      line_ = e.line;
      return method(*this, object, given);
    }
    Value function = attribute(object, callee.name);
    Arguments given = arguments(e, frame);
    if (caller) given.named.emplace_back("caller", *caller);
    line_ = e.line;
    return call(function, given);
  }
  Value function = evaluate(callee, frame);
  Arguments given = arguments(e, frame);
  if (caller) given.named.emplace_back("caller", *caller);
  line_ = e.line;
  return call(function, given);
}

Value Evaluator::call(const Value& callable, const Arguments& given) {
  if (callable.is_undefined()) use_undefined(callable);
  if (const auto* function = callable.get<const Callable>()) return (*function)->call(*this, given);
  if (const auto* loop = callable.get<Loop>()) {
    if (!(*loop)->recurse)
      raise("The loop must have the 'recursive' marker to be called recursively.");
    if (given.positional.size() != 1 || !given.named.empty())
      raise("a recursive loop is called with one iterable");
    auto recurse = (*loop)->recurse;
    return recurse(*this, given.positional[0]);
  }
  if (const auto* joiner = callable.get<Joiner>()) {
    bool first = !(*joiner)->used;
    (*joiner)->used = true;
    return first ? Value("") : (*joiner)->separator;
  }
  raise("'", type_name(callable), "' object is not callable");
}

Value Evaluator::filter(const std::string& name, const Value& input, const Arguments& given) {
  Filter f = find_filter(name);
  if (!f) raise("No filter named '", name, "' found.");
  Enter enter(*this);
  return f(*this, input, given);
}

bool Evaluator::test(const std::string& name, const Value& input, const Arguments& given) {
  Test t = find_test(name);
  if (!t) raise("No test named '", name, "' found.");
  return t(*this, input, given);
}

// --- access
// ---------------------------------------------------------------------------------------

std::shared_ptr<const Callable> Evaluator::bind(const Value& self, std::string name,
                                                Method method) {
  auto bound = std::make_shared<Callable>();
  bound->name = std::move(name);
  bound->depth = depth_of(self) + 1;
  check_depth(bound->depth);
  bound->call = [self, method](Evaluator& e, const Arguments& given) {
    return method(e, self, given);
  };
  return bound;
}

std::optional<Value> Evaluator::macro_property(const Callable& function, std::string_view name) {
  if (!function.macro) return std::nullopt;
  const Statement& s = *function.macro;
  if (name == "name") return Value(function.name);
  if (name == "catch_kwargs") return Value(s.uses_kwargs);
  if (name == "catch_varargs") return Value(s.uses_varargs);
  if (name == "caller") return Value(s.uses_caller);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const Parameter& p : s.parameters) names.emplace_back(p.name);
  return list(std::move(names), List::Kind::kTuple);
}

Value Evaluator::attribute(const Value& object, const std::string& name) {
  budget.step(name.size() / 8);  // what is not there is quoted, which takes some time
  if (object.is_undefined()) use_undefined(object);
  if (Method method = find_method(object, name)) return Value(bind(object, name, method));
  if (is_mutator(object, name)) return unsafe(object, name);
  if (object.is_dict()) {
    if (const Value* found = object.dict().find(std::string_view(name))) return *found;
  } else if (const auto* ns = object.get<Namespace>()) {
    if (const Value* found = (*ns)->find(name)) return *found;
  } else if (const auto* loop = object.get<Loop>()) {
    if (auto found = loop_property(**loop, name)) return *found;
  } else if (const auto* cycler = object.get<Cycler>()) {
    if (name == "current") return (*cycler)->items[(*cycler)->pos];
  } else if (const auto* function = object.get<const Callable>()) {
    if (auto found = macro_property(**function, name)) return *found;
  } else if (object.is_sequence() && object.list().kind == List::Kind::kGroup) {
    if (name == "grouper") return object.list().items[0];
    if (name == "list") return object.list().items[1];
  }
  // Python's own attributes: there, but hidden by the sandbox.
  if (name.size() > 4 && name.compare(0, 2, "__") == 0 &&
      name.compare(name.size() - 2, 2, "__") == 0)
    return unsafe(object, name);
  return no_attribute(object, name);
}

Value Evaluator::item(const Value& object, const Value& key) {
  if (object.is_undefined()) use_undefined(object);
  if (object.is_dict()) {
    if (hashable(key))
      if (const Value* found = object.dict().find(key, budget)) return *found;
  } else if (key.is_int()) {
    int64_t i = key.as_int();
    auto in_range = [&](int64_t n) {
      if (i < 0) i += n;
      return i >= 0 && i < n;
    };
    if (object.is_string()) {
      const Str& s = object.str();
      budget.bytes(s.text.size());
      if (in_range(static_cast<int64_t>(code_point_count(s.text)))) {
        if (is_ascii(s.text))
          return string(s.substr(static_cast<size_t>(i), static_cast<size_t>(i) + 1));
        auto offsets = code_point_offsets(s.text);
        return string(
            s.substr(offsets[static_cast<size_t>(i)], offsets[static_cast<size_t>(i) + 1]));
      }
    } else if (object.is_list() || object.is_tuple()) {
      const auto& items = object.list().items;
      if (in_range(static_cast<int64_t>(items.size()))) return items[static_cast<size_t>(i)];
    } else if (const auto* range = object.get<const Range>()) {
      if (in_range((*range)->size())) return Value((*range)->at(i));
    }
  }
  if (!key.is_string()) {
    const std::string shown = repr(key);
    budget.step(shown.size() / Budget::kBytesPerStep);
    return make_undefined(cat(object_repr(object), " has no element ", shown));
  }
  if (object.is_dict()) {
    budget.step(key.text().size() / Budget::kBytesPerStep);
    if (Method method = find_method(object, key.text()))
      return Value(bind(object, key.text(), method));
    if (is_mutator(object, key.text())) return unsafe(object, key.text());
    return no_attribute(object, key.text());
  }
  return attribute(object, key.text());
}

std::vector<Value> Evaluator::iterate(const Value& value) {
  std::vector<Value> out;
  if (value.is_undefined()) return out;
  if (value.is_sequence()) {
    out = value.list().items;
  } else if (value.is_dict()) {
    for (const auto& entry : value.dict().entries) out.push_back(entry.first);
  } else if (value.is_string()) {
    const Str& s = value.str();
    budget.step(s.text.size());
    auto offsets = code_point_offsets(s.text);
    for (size_t i = 0; i + 1 < offsets.size(); ++i)
      out.push_back(Value(Str(s.text.substr(offsets[i], offsets[i + 1] - offsets[i]))));
    if (!s.runs.empty()) {
      // Characters keep their origin: one walk over the runs beside the characters.
      size_t run = 0;
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        while (run + 1 < s.runs.size() && s.runs[run].end <= offsets[i]) ++run;
        Str c = out[i].str();
        c.runs.push_back(s.runs[run]);
        c.runs.back().end = c.text.size();
        out[i] = Value(std::move(c));
      }
    }
  } else if (const auto* range = value.get<const Range>()) {
    int64_t n = (*range)->size();
    budget.step(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) out.push_back(Value((*range)->at(i)));
  } else if (const auto* generator = value.get<Generator>()) {
    Generator& g = **generator;
    out.assign(g.items.begin() + static_cast<ptrdiff_t>(g.pos), g.items.end());
    g.pos = g.items.size();
  } else {
    raise("'", type_name(value), "' object is not iterable");
  }
  budget.step(out.size());
  return out;
}

int64_t Evaluator::length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) {
    budget.bytes(value.text().size());
    return static_cast<int64_t>(code_point_count(value.text()));
  }
  if (value.is_sequence()) return static_cast<int64_t>(value.list().items.size());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().entries.size());
  if (const auto* range = value.get<const Range>()) return (*range)->size();
  if (const auto* loop = value.get<Loop>()) return (*loop)->length();
  raise("object of type '", type_name(value), "' has no len()");
}

// --- new values
// -----------------------------------------------------------------------------------

void Evaluator::check_depth(int depth) const {
  if (depth > kMaxValueDepth) raise("a value nests deeper than ", kMaxValueDepth);
}

Value Evaluator::list(std::vector<Value> items, List::Kind kind) {
  budget.step(items.size());
  auto made = std::make_shared<List>();
  made->kind = kind;
  for (const Value& item : items) made->depth = std::max(made->depth, depth_of(item) + 1);
  check_depth(made->depth);
  made->items = std::move(items);
  return Value(std::shared_ptr<const List>(std::move(made)));
}

Value Evaluator::dict(std::shared_ptr<Dict> made) {
  budget.step(made->entries.size());
  check_depth(made->depth);
  return Value(std::shared_ptr<const Dict>(std::move(made)));
}

Value Evaluator::string(Str text) {
  budget.bytes(text.text.size() + text.runs.size() * sizeof(Run));
  if (text.text.size() > Budget::kMaxText)
    raise("a string is longer than ", Budget::kMaxText, " bytes");
  return Value(std::move(text));
}

Value Evaluator::generator(std::vector<Value> items, std::string type_name) {
  budget.step(items.size());
  auto made = std::make_shared<Generator>();
  made->type_name = std::move(type_name);
  for (const Value& item : items) made->depth = std::max(made->depth, depth_of(item) + 1);
  check_depth(made->depth);
  made->items = std::move(items);
  return Value(std::move(made));
}

Value Evaluator::new_namespace() {
  auto made = std::make_shared<Namespace>();
  namespaces_.push_back(made);
  return Value(std::move(made));
}

}  // namespace wick::jinja
