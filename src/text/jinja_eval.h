// SPDX-License-Identifier: Apache-2.0
// Runs a parsed template. One Evaluator is one rendering; it owns all state of it.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_value.h"

namespace wick::jinja {

class Evaluator {
 public:
  // `now` is what strftime_now prints.
  Evaluator(const Template& parsed, std::vector<std::pair<std::string, Value>> context,
            const std::tm& now);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // The whole text, with its runs. Throws: Raised; line() then says where.
  Str run();
  int line() const { return line_; }

  Budget budget;
  const std::tm& now() const { return now_; }

  // obj.name and obj[key]: jinja2's rules, which try the other way second and give an undefined
  // value where both fail.
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);

  Value call(const Value& callable, const Arguments& arguments);
  Value filter(const std::string& name, const Value& input, const Arguments& arguments);
  bool test(const std::string& name, const Value& input, const Arguments& arguments);

  std::vector<Value> iterate(const Value& value);  // a generator is used up
  int64_t length(const Value& value);              // len()

  // New values, with their bounds checked.
  Value list(std::vector<Value> items, List::Kind kind = List::Kind::kList);
  Value dict(std::shared_ptr<Dict> dict);
  Value string(Str text);
  Value generator(std::vector<Value> items, std::string type_name = "generator");
  Value new_namespace();
  std::shared_ptr<const Callable> bind(const Value& self, std::string name,
                                       Value (*method)(Evaluator&, const Value&, const Arguments&));
  void check_depth(int depth) const;

 private:
  struct Frame;
  using FramePtr = std::shared_ptr<Frame>;
  enum class Flow { kNext, kBreak, kContinue };
  struct Enter;

  // statements
  Flow execute(const std::vector<Statement>& body, const FramePtr& frame);
  Flow execute(const Statement& statement, const FramePtr& frame);
  void output(const Value& value);
  Flow execute_for(const Statement& s, const FramePtr& frame);
  void run_loop(const Statement& s, const Value& iterable, int64_t depth0, const FramePtr& frame);
  std::shared_ptr<Loop> make_loop(const Statement& s, const Value& iterable, const FramePtr& frame);
  void execute_set(const Statement& s, const FramePtr& frame);
  void execute_with(const Statement& s, const FramePtr& frame);
  Str capture(const Block& block, const FramePtr& frame);
  Value make_macro(const Statement& s, const FramePtr& frame);
  std::optional<Value> macro_property(const Callable& function, std::string_view name);
  Value call_macro(const Statement& s, const FramePtr& definition, const Arguments& arguments);
  FramePtr new_frame(const Block& block, const FramePtr& parent);
  void assign(const Expr& target, const Value& value, const FramePtr& frame);

  // expressions
  Value evaluate(const Expr& e, const FramePtr& frame);
  Value lookup(const std::string& name, const FramePtr& frame);
  Value evaluate_call(const Expr& e, const FramePtr& frame, const Value* caller = nullptr);
  Value evaluate_compare(const Expr& e, const FramePtr& frame);
  Value evaluate_container(const Expr& e, const FramePtr& frame);
  Value evaluate_slice(const Expr& e, const FramePtr& frame);
  Arguments arguments(const Expr& e, const FramePtr& frame);

  const Template& template_;
  std::vector<std::pair<std::string, Value>> context_;
  std::tm now_;
  int line_ = 1;
  int depth_ = 0;
  int loop_depth_ = 0;
  Str* out_ = nullptr;
  int32_t handling_ = -1;
  int32_t generation_ = -1;
  int32_t generations_ = 0;
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // may hold each other: emptied at the end
  std::vector<FramePtr> held_frames_;                   // scopes in which a macro was defined
};

}  // namespace wick::jinja
