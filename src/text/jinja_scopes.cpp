// SPDX-License-Identifier: Apache-2.0
// jinja2 decides before it runs which scope a name belongs to. Running, we look names up from the
// inside out, which gives the same but for one case: a scope that assigns a name before it reads
// it hides the caller's variable of that name from its first statement on (Block::hidden).
#include <algorithm>
#include <set>
#include <string>

#include "text/jinja_ast.h"

namespace wick::jinja {
namespace {

struct Scope {
  const Scope* parent = nullptr;
  std::set<std::string> known;

  bool knows(const std::string& name) const {
    for (const Scope* s = this; s; s = s->parent)
      if (s->known.count(name)) return true;
    return false;
  }
};

template <typename Visit>
void each_child(const Expr& e, Visit visit) {
  for (const auto& c : e.children)
    if (c) visit(*c);
  for (const auto& c : e.arguments) visit(*c);
  for (const auto& [name, c] : e.named) visit(*c);
  if (e.star) visit(*e.star);
  if (e.double_star) visit(*e.double_star);
}

class Analysis {
 public:
  void block(Block& block, Scope& scope) {
    std::vector<std::string> hidden;
    statements(block.body, scope, &hidden);
    block.hidden = std::move(hidden);
    inner(block.body, scope);
  }

 private:
  void load(const Expr& e, Scope& scope) {
    if (e.kind == ExprKind::kName || e.kind == ExprKind::kNamespaceRef) {
      if (!scope.knows(e.name)) scope.known.insert(e.name);
    }
    each_child(e, [&](const Expr& c) { load(c, scope); });
  }

  void store(const std::string& name, Scope& scope, std::vector<std::string>* hidden) {
    if (hidden && !scope.knows(name)) hidden->push_back(name);
    scope.known.insert(name);
  }

  void store(const Expr& target, Scope& scope, std::vector<std::string>* hidden) {
    if (target.kind == ExprKind::kName)
      store(target.name, scope, hidden);
    else if (target.kind == ExprKind::kNamespaceRef)
      load(target, scope);
    else
      for (const auto& item : target.children) store(*item, scope, hidden);
  }

  // What one scope reads and assigns itself, in order. In branches nothing is hidden.
  void statements(const std::vector<Statement>& body, Scope& scope,
                  std::vector<std::string>* hidden) {
    for (const Statement& s : body) {
      switch (s.kind) {
        case StatementKind::kIf:
          for (size_t i = 0; i < s.blocks.size(); ++i) {
            if (i < s.conditions.size()) load(*s.conditions[i], scope);
            statements(s.blocks[i].body, scope, nullptr);
          }
          break;
        case StatementKind::kSet:
          load(*s.expressions[0], scope);
          store(*s.targets[0], scope, hidden);
          break;
        case StatementKind::kSetBlock:
          store(*s.targets[0], scope, hidden);
          break;
        case StatementKind::kMacro:
          store(s.name, scope, hidden);
          break;
        default:
          for (const auto& e : s.expressions)
            if (e) load(*e, scope);
      }
    }
  }

  // The scopes inside, each with this one around it.
  void inner(std::vector<Statement>& body, Scope& scope) {
    for (Statement& s : body) {
      if (s.kind == StatementKind::kIf) {
        for (Block& b : s.blocks) inner(b.body, scope);
        continue;
      }
      for (size_t i = 0; i < s.blocks.size(); ++i) {
        Scope child;
        child.parent = &scope;
        bool loop_else = s.kind == StatementKind::kFor && i == 1;
        if (!loop_else && s.kind != StatementKind::kSetBlock)
          for (const auto& t : s.targets) store(*t, child, nullptr);
        if (s.kind == StatementKind::kFor && i == 0) child.known.insert("loop");
        for (const Parameter& p : s.parameters) child.known.insert(p.name);
        for (const Parameter& p : s.parameters)
          if (p.fallback) load(*p.fallback, child);
        if (s.kind == StatementKind::kMacro || s.kind == StatementKind::kCall) {
          s.uses_caller = mentions(s.blocks[i].body, "caller") && !has_parameter(s, "caller");
          s.uses_kwargs = mentions(s.blocks[i].body, "kwargs") && !has_parameter(s, "kwargs");
          s.uses_varargs = mentions(s.blocks[i].body, "varargs") && !has_parameter(s, "varargs");
          for (const char* special : {"caller", "kwargs", "varargs"}) child.known.insert(special);
        }
        block(s.blocks[i], child);
      }
    }
  }

  static bool has_parameter(const Statement& s, const std::string& name) {
    return std::any_of(s.parameters.begin(), s.parameters.end(),
                       [&](const Parameter& p) { return p.name == name; });
  }

  static bool mentions(const Expr& e, const std::string& name) {
    if (e.kind == ExprKind::kName && e.name == name) return true;
    bool found = false;
    each_child(e, [&](const Expr& c) { found = found || mentions(c, name); });
    return found;
  }

  static bool mentions(const std::vector<Statement>& body, const std::string& name) {
    for (const Statement& s : body) {
      for (const auto* list : {&s.expressions, &s.conditions})
        for (const auto& e : *list)
          if (e && mentions(*e, name)) return true;
      for (const Parameter& p : s.parameters)
        if (p.fallback && mentions(*p.fallback, name)) return true;
      for (const Block& b : s.blocks)
        if (mentions(b.body, name)) return true;
    }
    return false;
  }
};

}  // namespace

void analyze_scopes(Template& parsed) {
  Scope root;
  Analysis().block(parsed.root, root);
}

}  // namespace wick::jinja
