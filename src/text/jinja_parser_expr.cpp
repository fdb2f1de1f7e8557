// SPDX-License-Identifier: Apache-2.0
// Expressions.
#include <algorithm>

#include "base/check.h"
#include "text/jinja_library.h"
#include "text/jinja_parser.h"

namespace wick::jinja {

ExprPtr Parser::make(ExprKind kind, int line) const {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = line;
  return e;
}

ExprPtr Parser::finish(ExprPtr e) const {
  int tallest = 0;
  auto look_at = [&](const ExprPtr& child) {
    if (child) tallest = std::max(tallest, child->height);
  };
  for (const auto& child : e->children) look_at(child);
  for (const auto& child : e->arguments) look_at(child);
  for (const auto& [name, child] : e->named) look_at(child);
  look_at(e->star);
  look_at(e->double_star);
  e->height = tallest + 1;
  if (e->height > kMaxHeight)
    fail_at(e->line,
            cat("an expression has more than ", kMaxHeight, " parts in a chain; split it"));
  return e;
}

ExprPtr Parser::binary(ExprKind kind, int line, ExprPtr left, ExprPtr right,
                       const std::string& op) const {
  ExprPtr e = make(kind, line);
  e->name = op;
  e->children.push_back(std::move(left));
  e->children.push_back(std::move(right));
  return finish(std::move(e));
}

ExprPtr Parser::parse_expression(bool with_condition) {
  Nested nested(*this);
  return with_condition ? parse_condition() : parse_or();
}

ExprPtr Parser::parse_condition() {
  // What is soft about a condition is only known behind its first part, so unknown filters in
  // front of an inline `if` are left to run time like those behind it.
  size_t start = pos_;
  bool inline_if = false;
  int open = 0;
  for (size_t i = start; i < tokens_.size(); ++i) {
    const Token& t = tokens_[i];
    if (t.kind == TokenKind::kVariableEnd || t.kind == TokenKind::kBlockEnd) break;
    if (t.kind == TokenKind::kOperator) {
      if (t.text == "(" || t.text == "[" || t.text == "{") ++open;
      if ((t.text == ")" || t.text == "]" || t.text == "}") && --open < 0) break;
      if (t.text == "," && open == 0) break;
    }
    if (open == 0 && t.is_name("if")) {
      inline_if = true;
      break;
    }
  }
  Restore<bool> soft(soft_, soft_ || inline_if);
  ExprPtr e = parse_or();
  while (current().is_name("if")) {
    int line = next().line;
    ExprPtr test = parse_or();
    ExprPtr otherwise;
    if (skip_name("else")) {
      Nested nested(*this);
      otherwise = parse_condition();
    }
    ExprPtr c = make(ExprKind::kCondition, line);
    c->children.push_back(std::move(test));
    c->children.push_back(std::move(e));
    c->children.push_back(std::move(otherwise));
    e = finish(std::move(c));
  }
  return e;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (current().is_name("or")) {
    int line = next().line;
    left = binary(ExprKind::kOr, line, std::move(left), parse_and());
  }
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (current().is_name("and")) {
    int line = next().line;
    left = binary(ExprKind::kAnd, line, std::move(left), parse_not());
  }
  return left;
}

ExprPtr Parser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  Nested nested(*this);
  ExprPtr e = make(ExprKind::kNot, next().line);
  e->children.push_back(parse_not());
  return finish(std::move(e));
}

ExprPtr Parser::parse_compare() {
  ExprPtr e = make(ExprKind::kCompare, current().line);
  e->children.push_back(parse_sum());
  while (true) {
    std::string op;
    for (const char* known : {"==", "!=", "<", "<=", ">", ">="})
      if (current().is_operator(known)) op = known;
    if (!op.empty()) {
      next();
    } else if (skip_name("in")) {
      op = "in";
    } else if (current().is_name("not") && look().is_name("in")) {
      next();
      next();
      op = "not in";
    } else {
      break;
    }
    e->operators.push_back(op);
    e->children.push_back(parse_sum());
  }
  if (e->operators.empty()) return std::move(e->children[0]);
  return finish(std::move(e));
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (current().is_operator("+") || current().is_operator("-")) {
    Token op = next();
    left = binary(ExprKind::kBinary, op.line, std::move(left), parse_concat(), op.text);
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  ExprPtr e = make(ExprKind::kConcat, current().line);
  e->children.push_back(parse_product());
  while (skip_operator("~")) e->children.push_back(parse_product());
  if (e->children.size() == 1) return std::move(e->children[0]);
  return finish(std::move(e));
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_power();
  while (current().is_operator("*") || current().is_operator("/") || current().is_operator("//") ||
         current().is_operator("%")) {
    Token op = next();
    left = binary(ExprKind::kBinary, op.line, std::move(left), parse_power(), op.text);
  }
  return left;
}

ExprPtr Parser::parse_power() {
  // Left to right, unlike Python: 2**3**2 is 64.
  ExprPtr left = parse_unary();
  while (current().is_operator("**")) {
    Token op = next();
    left = binary(ExprKind::kBinary, op.line, std::move(left), parse_unary(), op.text);
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filter) {
  ExprPtr node;
  if (current().is_operator("-") || current().is_operator("+")) {
    Nested nested(*this);
    Token op = next();
    node = make(op.text == "-" ? ExprKind::kNegative : ExprKind::kPositive, op.line);
    node->children.push_back(parse_unary(false));
    node = finish(std::move(node));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filter_expression(std::move(node)) : std::move(node);
}

ExprPtr Parser::parse_primary(bool with_namespace) {
  const Token token = current();
  ExprPtr e = make(ExprKind::kConst, token.line);
  switch (token.kind) {
    case TokenKind::kName:
      next();
      if (token.text == "true" || token.text == "True") {
        e->value = Value(true);
      } else if (token.text == "false" || token.text == "False") {
        e->value = Value(false);
      } else if (token.text == "none" || token.text == "None") {
        e->value = Value(None{});
      } else if (with_namespace && skip_operator(".")) {
        e->kind = ExprKind::kNamespaceRef;
        e->name = token.text;
        e->attribute = expect_identifier();
      } else {
        e->kind = ExprKind::kName;
        e->name = token.text;
      }
      return e;
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) text += next().text;
      e->value = Value(std::move(text));
      return e;
    }
    case TokenKind::kInteger:
      next();
      e->value = Value(token.integer);
      return e;
    case TokenKind::kFloat:
      next();
      e->value = Value(token.number);
      return e;
    default:
      break;
  }
  if (token.is_operator("(")) {
    Nested nested(*this);
    next();
    e = parse_tuple(false, true, "", true, false);
    expect_operator(")");
    return e;
  }
  if (token.is_operator("[")) return parse_list();
  if (token.is_operator("{")) return parse_dict();
  fail_at(token.line, cat("unexpected '", describe(token), "'"));
}

ExprPtr Parser::parse_tuple(bool simplified, bool with_condition, std::string_view end_name,
                            bool parentheses, bool with_namespace) {
  ExprPtr tuple = make(ExprKind::kTuple, current().line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->children.empty()) expect_operator(",");
    const Token& t = current();
    if (t.kind == TokenKind::kVariableEnd || t.kind == TokenKind::kBlockEnd || t.is_operator(")") ||
        (!end_name.empty() && t.is_name(end_name)))
      break;
    tuple->children.push_back(simplified ? parse_primary(with_namespace)
                                         : parse_expression(with_condition));
    if (!current().is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!tuple->children.empty()) return std::move(tuple->children[0]);
    if (!parentheses)
      fail_at(current().line, cat("Expected an expression, got '", describe(current()), "'"));
  }
  return finish(std::move(tuple));
}

ExprPtr Parser::parse_list() {
  Nested nested(*this);
  ExprPtr e = make(ExprKind::kList, next().line);
  while (!current().is_operator("]")) {
    if (!e->children.empty()) expect_operator(",");
    if (current().is_operator("]")) break;
    e->children.push_back(parse_expression());
  }
  expect_operator("]");
  return finish(std::move(e));
}

ExprPtr Parser::parse_dict() {
  Nested nested(*this);
  ExprPtr e = make(ExprKind::kDict, next().line);
  while (!current().is_operator("}")) {
    if (!e->children.empty()) expect_operator(",");
    if (current().is_operator("}")) break;
    e->children.push_back(parse_expression());
    expect_operator(":");
    e->children.push_back(parse_expression());
  }
  expect_operator("}");
  return finish(std::move(e));
}

ExprPtr Parser::parse_postfix(ExprPtr node) {
  while (true) {
    if (current().is_operator(".") || current().is_operator("["))
      node = parse_subscript(std::move(node));
    else if (current().is_operator("("))
      node = parse_call(std::move(node));
    else
      return node;
  }
}

ExprPtr Parser::parse_filter_expression(ExprPtr node) {
  while (true) {
    if (current().is_operator("|"))
      node = parse_filter(std::move(node));
    else if (current().is_name("is"))
      node = parse_test(std::move(node));
    else if (current().is_operator("("))
      node = parse_call(std::move(node));
    else
      return node;
  }
}

ExprPtr Parser::parse_subscript(ExprPtr node) {
  Token token = next();
  if (token.text == ".") {
    Token attribute = next();
    if (attribute.kind == TokenKind::kName) {
      ExprPtr e = make(ExprKind::kAttribute, token.line);
      e->name = attribute.text;
      e->children.push_back(std::move(node));
      return finish(std::move(e));
    }
    if (attribute.kind != TokenKind::kInteger) fail_at(attribute.line, "expected name or number");
    ExprPtr index = make(ExprKind::kConst, attribute.line);
    index->value = Value(attribute.integer);
    return binary(ExprKind::kItem, token.line, std::move(node), std::move(index));
  }
  Nested nested(*this);
  std::vector<ExprPtr> parts;
  bool slice = false;
  auto bound = [&] {
    bool absent =
        current().is_operator(":") || current().is_operator("]") || current().is_operator(",");
    return absent ? nullptr : parse_expression();
  };
  std::vector<ExprPtr> indices;
  while (!current().is_operator("]")) {
    if (!indices.empty()) expect_operator(",");
    ExprPtr first = current().is_operator(":") ? nullptr : parse_expression();
    if (!current().is_operator(":")) {
      indices.push_back(std::move(first));
      continue;
    }
    next();
    if (slice || !indices.empty()) fail_at(token.line, "a subscript takes one slice");
    slice = true;
    parts.push_back(std::move(first));
    parts.push_back(bound());
    parts.push_back(skip_operator(":") ? bound() : nullptr);
    break;
  }
  expect_operator("]");
  if (slice) {
    ExprPtr e = make(ExprKind::kSlice, token.line);
    e->children.push_back(std::move(node));
    for (ExprPtr& p : parts) e->children.push_back(std::move(p));
    return finish(std::move(e));
  }
  if (indices.size() == 1)
    return binary(ExprKind::kItem, token.line, std::move(node), std::move(indices[0]));
  ExprPtr tuple = make(ExprKind::kTuple, token.line);
  tuple->children = std::move(indices);
  return binary(ExprKind::kItem, token.line, std::move(node), finish(std::move(tuple)));
}

void Parser::parse_arguments(Expr& call) {
  Nested nested(*this);
  int line = current().line;
  expect_operator("(");
  auto ensure = [&](bool ok) {
    if (!ok) fail_at(line, "invalid syntax for function call expression");
  };
  bool need_comma = false;
  while (!current().is_operator(")")) {
    if (need_comma) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    if (current().is_operator("*")) {
      ensure(!call.star && !call.double_star);
      next();
      call.star = parse_expression();
    } else if (current().is_operator("**")) {
      ensure(!call.double_star);
      next();
      call.double_star = parse_expression();
    } else if (current().kind == TokenKind::kName && look().is_operator("=")) {
      ensure(!call.double_star);
      std::string name = next().text;
      next();
      for (const auto& other : call.named)
        if (other.first == name) fail_at(line, cat("keyword argument repeated: ", name));
      call.named.emplace_back(name, parse_expression());
    } else {
      ensure(!call.star && !call.double_star && call.named.empty());
      call.arguments.push_back(parse_expression());
    }
    need_comma = true;
  }
  expect_operator(")");
}

ExprPtr Parser::parse_call(ExprPtr node) {
  ExprPtr e = make(ExprKind::kCall, current().line);
  e->children.push_back(std::move(node));
  parse_arguments(*e);
  return finish(std::move(e));
}

std::string Parser::parse_dotted_name() {
  std::string name = expect_identifier();
  while (skip_operator(".")) {
    name += '.';
    name += expect_identifier();
  }
  return name;
}

ExprPtr Parser::parse_filter(ExprPtr node, bool start_inline) {
  while (current().is_operator("|") || start_inline) {
    if (!start_inline) next();
    start_inline = false;
    ExprPtr e = make(ExprKind::kFilter, current().line);
    e->name = parse_dotted_name();
    e->children.push_back(std::move(node));
    if (current().is_operator("(")) parse_arguments(*e);
    if (!soft_ && !find_filter(e->name)) fail_at(e->line, cat("No filter named '", e->name, "'."));
    node = finish(std::move(e));
  }
  return node;
}

ExprPtr Parser::parse_test(ExprPtr node) {
  ExprPtr e = make(ExprKind::kTest, next().line);
  bool negated = skip_name("not");
  e->name = parse_dotted_name();
  e->children.push_back(std::move(node));
  const Token& t = current();
  bool starts_value = t.kind == TokenKind::kName || t.kind == TokenKind::kString ||
                      t.kind == TokenKind::kInteger || t.kind == TokenKind::kFloat ||
                      t.is_operator("[") || t.is_operator("{");
  if (t.is_operator("(")) {
    parse_arguments(*e);
  } else if (starts_value && !t.is_name("else") && !t.is_name("or") && !t.is_name("and")) {
    if (t.is_name("is")) fail_at(t.line, "You cannot chain multiple tests with is");
    e->arguments.push_back(parse_postfix(parse_primary()));
  }
  if (!soft_ && !find_test(e->name)) fail_at(e->line, cat("No test named '", e->name, "'."));
  e = finish(std::move(e));
  if (!negated) return e;
  ExprPtr no = make(ExprKind::kNot, e->line);
  no->children.push_back(std::move(e));
  return finish(std::move(no));
}

}  // namespace wick::jinja
