// SPDX-License-Identifier: Apache-2.0
// Statements, scopes and macros; expressions are in jinja_eval_expr.cpp.
#include "text/jinja_eval.h"

#include <algorithm>

#include "text/jinja_eval_frame.h"
#include "text/jinja_library.h"

namespace wick::jinja {

Evaluator::Evaluator(const Template& parsed, std::vector<std::pair<std::string, Value>> context,
                     const std::tm& now)
    : template_(parsed), context_(std::move(context)), now_(now) {}

Evaluator::~Evaluator() {
  for (auto& ns : namespaces_) ns->attributes.clear();
}

Str Evaluator::run() {
  Str out;
  out_ = &out;
  execute(template_.root.body, new_frame(template_.root, nullptr));
  return out;
}

Evaluator::FramePtr Evaluator::new_frame(const Block& block, const FramePtr& parent) {
  auto frame = std::make_shared<Frame>();
  frame->parent = parent;
  for (const std::string& name : block.hidden) frame->variables.emplace_back(name, std::nullopt);
  return frame;
}

Evaluator::Flow Evaluator::execute(const std::vector<Statement>& body, const FramePtr& frame) {
  for (const Statement& statement : body) {
    Flow flow = execute(statement, frame);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute(const Statement& s, const FramePtr& frame) {
  Enter enter(*this);
  line_ = s.line;
  switch (s.kind) {
    case StatementKind::kOutput:
      for (const ExprPtr& e : s.expressions) output(evaluate(*e, frame));
      return Flow::kNext;
    case StatementKind::kIf:
      for (size_t i = 0; i < s.blocks.size(); ++i)
        if (i >= s.conditions.size() || truthy(evaluate(*s.conditions[i], frame)))
          return execute(s.blocks[i].body, frame);
      return Flow::kNext;
    case StatementKind::kFor:
      return execute_for(s, frame);
    case StatementKind::kSet:
    case StatementKind::kSetBlock:
      execute_set(s, frame);
      return Flow::kNext;
    case StatementKind::kMacro:
      frame->set(s.name, make_macro(s, frame));
      return Flow::kNext;
    case StatementKind::kCall: {
      Value caller = make_macro(s, frame);
      output(evaluate_call(*s.expressions[0], frame, &caller));
      return Flow::kNext;
    }
    case StatementKind::kFilterBlock: {
      FramePtr inner = new_frame(s.blocks[0], frame);
      inner->input = string(capture(s.blocks[0], inner));
      output(evaluate(*s.expressions[0], inner));
      return Flow::kNext;
    }
    case StatementKind::kWith:
      execute_with(s, frame);
      return Flow::kNext;
    case StatementKind::kGeneration: {
      Keep<int32_t> generation(generation_, generations_++);
      output(string(capture(s.blocks[0], new_frame(s.blocks[0], frame))));
      return Flow::kNext;
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Evaluator::output(const Value& value) {
  Str made;
  const Str* text = &made;
  if (value.is_string())
    text = &value.str();
  else
    made = to_str(value);
  budget.bytes(text->text.size() + text->runs.size() * sizeof(Run));
  if (out_->text.size() + text->text.size() > Budget::kMaxText)
    raise("the output is longer than ", Budget::kMaxText, " bytes");
  size_t first = out_->runs.size();
  out_->append(*text);
  for (size_t i = first; i < out_->runs.size(); ++i) {
    Run& run = out_->runs[i];
    if (run.handling < 0) run.handling = handling_;
    if (run.generation < 0) run.generation = generation_;
  }
}

Str Evaluator::capture(const Block& block, const FramePtr& frame) {
  Str text;
  Keep<Str*> out(out_, &text);
  execute(block.body, frame);
  return text;
}

// --- loops
// ----------------------------------------------------------------------------------------

std::shared_ptr<Loop> Evaluator::make_loop(const Statement& s, const Value& iterable,
                                           const FramePtr& frame) {
  auto loop = std::make_shared<Loop>();
  std::function<bool(Value&)> source;
  if (const auto* generator = iterable.get<Generator>()) {
    loop->depth = (*generator)->depth + 1;
    source = [g = *generator](Value& out) {
      if (g->pos >= g->items.size()) return false;
      out = g->items[g->pos++];
      return true;
    };
  } else {
    auto items = std::make_shared<std::vector<Value>>(iterate(iterable));
    loop->size = static_cast<int64_t>(items->size());
    loop->has_size = s.conditions.empty();
    loop->depth = depth_of(iterable) + 1;
    source = [items, pos = size_t{0}](Value& out) mutable {
      if (pos >= items->size()) return false;
      out = (*items)[pos++];
      return true;
    };
  }
  check_depth(loop->depth);
  if (s.conditions.empty()) {
    loop->fetch = std::move(source);
    return loop;
  }
  // The condition runs when an item is needed, so that it sees what the body has done before.
  loop->fetch = [this, &s, frame, source](Value& out) {
    while (source(out)) {
      budget.step();
      auto inner = std::make_shared<Frame>();
      inner->parent = frame;
      assign(*s.targets[0], out, inner);
      if (truthy(evaluate(*s.conditions[0], inner))) return true;
    }
    return false;
  };
  return loop;
}

Evaluator::Flow Evaluator::execute_for(const Statement& s, const FramePtr& frame) {
  run_loop(s, evaluate(*s.expressions[0], frame), 0, frame);
  return Flow::kNext;
}

void Evaluator::run_loop(const Statement& s, const Value& iterable, int64_t depth0,
                         const FramePtr& frame) {
  Enter enter(*this);
  Keep<int32_t> handling(handling_, handling_);
  Keep<int> loop_depth(loop_depth_, loop_depth_ + 1);
  auto loop = make_loop(s, iterable, frame);
  // The function may outlive this call in a variable; it stops working then.
  LoopLife life(*loop);
  loop->depth0 = depth0;
  if (s.recursive)
    loop->recurse = [&s, frame, depth0](Evaluator& e, const Value& inner) {
      Str text;
      Keep<Str*> out(e.out_, &text);
      e.run_loop(s, inner, depth0 + 1, frame);
      return e.string(std::move(text));
    };
  const int32_t around = handling_;
  bool ran = false;
  Value item;
  while (loop->next(item)) {
    budget.step();
    FramePtr inner = new_frame(s.blocks[0], frame);
    inner->set("loop", Value(loop));
    assign(*s.targets[0], item, inner);
    int32_t message = message_of(item);
    handling_ = message >= 0 ? message : around;
    Flow flow = execute(s.blocks[0].body, inner);
    // An iteration that is left by break did not reach its end, where jinja2 notes that it ran.
    if (flow == Flow::kNext) ran = true;
    if (flow == Flow::kBreak) break;
  }
  handling_ = around;
  if (!ran && s.blocks.size() > 1) execute(s.blocks[1].body, new_frame(s.blocks[1], frame));
}

// --- assignment
// -----------------------------------------------------------------------------------

void Evaluator::assign(const Expr& target, const Value& value, const FramePtr& frame) {
  if (target.kind == ExprKind::kName) {
    frame->set(target.name, value);
  } else if (target.kind == ExprKind::kNamespaceRef) {
    Value holder = lookup(target.name, frame);
    const auto* ns = holder.get<Namespace>();
    if (!ns) raise("cannot assign attribute on non-namespace object");
    check_namespace_name(target.attribute);
    budget.step((*ns)->attributes.size() / 16);
    (*ns)->set(target.attribute, value);
  } else {
    std::vector<Value> items = iterate(value);
    size_t want = target.children.size();
    if (items.size() > want) raise("too many values to unpack (expected ", want, ")");
    if (items.size() < want)
      raise("not enough values to unpack (expected ", want, ", got ", items.size(), ")");
    for (size_t i = 0; i < want; ++i) assign(*target.children[i], items[i], frame);
  }
}

void Evaluator::execute_set(const Statement& s, const FramePtr& frame) {
  const Expr& target = *s.targets[0];
  if (target.kind == ExprKind::kNamespaceRef && !lookup(target.name, frame).get<Namespace>())
    raise("cannot assign attribute on non-namespace object");
  Value value;
  if (s.kind == StatementKind::kSet) {
    value = evaluate(*s.expressions[0], frame);
  } else {
    FramePtr inner = new_frame(s.blocks[0], frame);
    value = string(capture(s.blocks[0], inner));
    if (s.expressions[0]) {
      inner->input = value;
      value = evaluate(*s.expressions[0], inner);
    }
  }
  // A loop over indices that fetches its message: what follows in this iteration is about it.
  if (loop_depth_ > 0 && handling_ < 0 && value.is_dict()) handling_ = message_of(value);
  assign(target, value, frame);
}

void Evaluator::execute_with(const Statement& s, const FramePtr& frame) {
  FramePtr inner = new_frame(s.blocks[0], frame);
  for (size_t i = 0; i < s.targets.size(); ++i)
    assign(*s.targets[i], evaluate(*s.expressions[i], frame), inner);
  execute(s.blocks[0].body, inner);
}

// --- macros
// ---------------------------------------------------------------------------------------

Value Evaluator::make_macro(const Statement& s, const FramePtr& frame) {
  if (!frame->held) held_frames_.push_back(frame);
  frame->held = true;
  auto macro = std::make_shared<Callable>();
  macro->name = s.name;
  macro->macro = &s;
  macro->call = [&s, weak = std::weak_ptr<Frame>(frame)](Evaluator& e, const Arguments& arguments) {
    return e.call_macro(s, weak.lock(), arguments);
  };
  return Value(std::shared_ptr<const Callable>(macro));
}

Value Evaluator::call_macro(const Statement& s, const FramePtr& definition,
                            const Arguments& arguments) {
  Enter enter(*this);
  Keep<int32_t> handling(handling_, handling_);
  Keep<int> loop_depth(loop_depth_, loop_depth_ + 1);
  FramePtr frame = new_frame(s.blocks[0], definition);
  std::vector<std::pair<std::string, Value>> named = arguments.named;
  auto take = [&](const std::string& name) -> std::optional<Value> {
    for (auto it = named.begin(); it != named.end(); ++it)
      if (it->first == name) {
        Value value = std::move(it->second);
        named.erase(it);
        return value;
      }
    return std::nullopt;
  };
  std::vector<const Parameter*> missing;
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    const Parameter& p = s.parameters[i];
    std::optional<Value> value;
    if (i < arguments.positional.size())
      value = arguments.positional[i];
    else
      value = take(p.name);
    if (!value) {
      missing.push_back(&p);
      continue;
    }
    if (value->is_dict() && value->dict().is_message) handling_ = value->dict().message;
    frame->set(p.name, std::move(*value));
  }
  if (s.uses_caller) {
    auto caller = take("caller");
    frame->set("caller", caller ? *caller : make_undefined("No caller defined"));
  }
  if (s.uses_kwargs) {
    auto rest = std::make_shared<Dict>();
    for (auto& [name, value] : named) rest->set(name, value);
    frame->set("kwargs", dict(rest));
  } else if (!named.empty()) {
    raise("macro '", s.name, "' takes no keyword argument '", named[0].first, "'");
  }
  size_t count = std::min(s.parameters.size(), arguments.positional.size());
  if (s.uses_varargs) {
    frame->set("varargs", list({arguments.positional.begin() + static_cast<ptrdiff_t>(count),
                                arguments.positional.end()},
                               List::Kind::kTuple));
  } else if (arguments.positional.size() > s.parameters.size()) {
    raise("macro '", s.name, "' takes not more than ", s.parameters.size(), " argument(s)");
  }
  // A default sees the parameters, those without a value yet as undefined.
  for (const Parameter* p : missing)
    frame->set(p->name, make_undefined(cat("parameter '", p->name, "' was not provided")));
  for (const Parameter* p : missing)
    if (p->fallback) frame->set(p->name, evaluate(*p->fallback, frame));
  int line = line_;
  Str text = capture(s.blocks[0], frame);
  line_ = line;
  return string(std::move(text));
}

}  // namespace wick::jinja
