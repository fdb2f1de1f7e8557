// SPDX-License-Identifier: Apache-2.0
// Statements; expressions are in jinja_parser_expr.cpp.
#include "text/jinja_parser.h"

#include <algorithm>

#include "base/check.h"

namespace wick::jinja {

Parser::Nested::Nested(Parser& p) : parser_(p) {
  if (++p.nesting_ > kMaxNesting) {
    --p.nesting_;
    p.fail_at(p.current().line, cat("the template nests deeper than ", kMaxNesting));
  }
}

Token Parser::next() {
  Token token = tokens_[pos_];
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return token;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

bool Parser::skip_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  next();
  return true;
}

std::string Parser::describe(const Token& token) const {
  switch (token.kind) {
    case TokenKind::kData:
      return "template data / text";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kString:
      return "string";
    case TokenKind::kInteger:
      return "integer";
    case TokenKind::kFloat:
      return "float";
    case TokenKind::kName:
    case TokenKind::kOperator:
      return token.text;
    case TokenKind::kEnd:
      return "end of template";
  }
  return "";
}

void Parser::fail_at(int line, const std::string& message) const {
  throw SyntaxError{line, message};
}

void Parser::refuse(int line, const std::string& message) const {
  throw SyntaxError{line, message, true};
}

void Parser::expect_operator(std::string_view op) {
  if (!skip_operator(op))
    fail_at(current().line, cat("expected token '", op, "', got '", describe(current()), "'"));
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name))
    fail_at(current().line, cat("expected token '", name, "', got '", describe(current()), "'"));
}

std::string Parser::expect_identifier() {
  expect(TokenKind::kName, "name");
  return tokens_[pos_ - 1].text;
}

void Parser::expect(TokenKind kind, const char* what) {
  if (current().kind != kind)
    fail_at(current().line, cat("expected token '", what, "', got '", describe(current()), "'"));
  next();
}

Template Parser::parse() {
  Template out;
  out.root.body = parse_body({});
  out.has_generation = has_generation_;
  return out;
}

// Ends in front of the name that closes the body; without `ends`, at the end of the template.
std::vector<Statement> Parser::parse_body(const std::vector<std::string>& ends) {
  Nested nested(*this);
  std::vector<Statement> body;
  auto output = [&]() -> std::vector<ExprPtr>& {
    if (body.empty() || body.back().kind != StatementKind::kOutput) {
      body.emplace_back();
      body.back().line = current().line;
    }
    return body.back().expressions;
  };
  while (current().kind != TokenKind::kEnd) {
    switch (current().kind) {
      case TokenKind::kData: {
        ExprPtr data = make(ExprKind::kConst, current().line);
        data->value = Value(current().text);
        output().push_back(std::move(data));
        next();
        break;
      }
      case TokenKind::kVariableBegin: {
        next();
        ExprPtr e = parse_tuple(false, true, "", false, false);
        output().push_back(std::move(e));
        expect(TokenKind::kVariableEnd, "end of print statement");
        break;
      }
      default: {
        expect(TokenKind::kBlockBegin, "begin of statement block");
        if (current().kind == TokenKind::kName &&
            std::find(ends.begin(), ends.end(), current().text) != ends.end())
          return body;
        parse_statement(body);
        expect(TokenKind::kBlockEnd, "end of statement block");
      }
    }
  }
  if (!ends.empty()) {
    std::string wanted;
    for (const auto& end : ends) wanted += cat(wanted.empty() ? "" : " or ", "'", end, "'");
    fail_at(current().line,
            cat("Unexpected end of template. Jinja was looking for the following tags: ", wanted));
  }
  return body;
}

Block Parser::parse_block(const std::vector<std::string>& ends, bool drop_end) {
  skip_operator(":");
  expect(TokenKind::kBlockEnd, "end of statement block");
  Block block;
  block.body = parse_body(ends);
  if (drop_end) next();
  return block;
}

void Parser::parse_statement(std::vector<Statement>& out) {
  Nested nested(*this);
  const Token& token = current();
  if (token.kind != TokenKind::kName) fail_at(token.line, "tag name expected");
  const std::string tag = token.text;
  int line = token.line;
  auto add = [&](Statement s) {
    s.line = line;
    out.push_back(std::move(s));
  };
  if (tag == "if") return add(parse_if());
  if (tag == "for") return add(parse_for());
  if (tag == "set") return add(parse_set());
  if (tag == "macro") return add(parse_macro());
  if (tag == "call") return add(parse_call_block());
  if (tag == "filter") return add(parse_filter_block());
  if (tag == "with") return add(parse_with());
  if (tag == "generation") return add(parse_generation());
  if (tag == "print") {
    next();
    Statement s;
    while (current().kind != TokenKind::kBlockEnd) {
      if (!s.expressions.empty()) expect_operator(",");
      s.expressions.push_back(parse_expression());
    }
    return add(std::move(s));
  }
  if (tag == "break" || tag == "continue") {
    next();
    if (loops_ == 0) fail_at(line, cat("'", tag, "' outside loop"));
    Statement s;
    s.kind = tag == "break" ? StatementKind::kBreak : StatementKind::kContinue;
    return add(std::move(s));
  }
  for (const char* known : {"include", "import", "from", "extends", "block", "autoescape"})
    if (tag == known)
      refuse(line,
             cat("{% ", tag, " %} is not supported in chat templates; write the text in place"));
  fail_at(line, cat("Encountered unknown tag '", tag, "'."));
}

Statement Parser::parse_if() {
  Statement s;
  s.kind = StatementKind::kIf;
  Restore<bool> soft(soft_, true);
  next();
  while (true) {
    s.conditions.push_back(parse_tuple(false, false, "", false, false));
    s.blocks.push_back(parse_block({"elif", "else", "endif"}, false));
    Token end = next();
    if (end.text == "elif") continue;
    if (end.text == "else") s.blocks.push_back(parse_block({"endif"}, true));
    return s;
  }
}

Statement Parser::parse_for() {
  Statement s;
  s.kind = StatementKind::kFor;
  next();
  s.targets.push_back(parse_target("in", false));
  expect_name("in");
  s.expressions.push_back(parse_tuple(false, false, "recursive", false, false));
  Restore<bool> soft(soft_, false);
  if (skip_name("if")) s.conditions.push_back(parse_expression());
  s.recursive = skip_name("recursive");
  {
    Restore<int> loops(loops_, loops_ + 1);
    s.blocks.push_back(parse_block({"endfor", "else"}, false));
  }
  if (next().text == "else") s.blocks.push_back(parse_block({"endfor"}, true));
  return s;
}

Statement Parser::parse_set() {
  Statement s;
  next();
  s.targets.push_back(parse_target("", true));
  if (skip_operator("=")) {
    s.kind = StatementKind::kSet;
    s.expressions.push_back(parse_tuple(false, true, "", false, false));
    return s;
  }
  s.kind = StatementKind::kSetBlock;
  Restore<bool> soft(soft_, false);
  s.expressions.push_back(parse_filter(nullptr));
  s.blocks.push_back(parse_block({"endset"}, true));
  return s;
}

void Parser::parse_signature(Statement& s) {
  expect_operator("(");
  while (!current().is_operator(")")) {
    if (!s.parameters.empty()) expect_operator(",");
    Parameter p;
    p.name = expect_identifier();
    if (skip_operator("="))
      p.fallback = parse_expression();
    else if (!s.parameters.empty() && s.parameters.back().fallback)
      fail_at(current().line, "non-default argument follows default argument");
    for (const Parameter& other : s.parameters)
      if (other.name == p.name)
        fail_at(current().line, cat("duplicate argument '", p.name, "' in macro definition"));
    s.parameters.push_back(std::move(p));
  }
  expect_operator(")");
}

Statement Parser::parse_macro() {
  Statement s;
  s.kind = StatementKind::kMacro;
  next();
  s.name = expect_identifier();
  Restore<bool> soft(soft_, false);
  Restore<int> loops(loops_, 0);
  parse_signature(s);
  s.blocks.push_back(parse_block({"endmacro"}, true));
  return s;
}

Statement Parser::parse_call_block() {
  Statement s;
  s.kind = StatementKind::kCall;
  s.name = "caller";
  int line = next().line;
  if (current().is_operator("(")) parse_signature(s);
  s.expressions.push_back(parse_expression());
  if (s.expressions[0]->kind != ExprKind::kCall) fail_at(line, "expected call");
  Restore<bool> soft(soft_, false);
  Restore<int> loops(loops_, 0);
  s.blocks.push_back(parse_block({"endcall"}, true));
  return s;
}

Statement Parser::parse_filter_block() {
  Statement s;
  s.kind = StatementKind::kFilterBlock;
  next();
  Restore<bool> soft(soft_, false);
  s.expressions.push_back(parse_filter(nullptr, true));
  s.blocks.push_back(parse_block({"endfilter"}, true));
  return s;
}

Statement Parser::parse_with() {
  Statement s;
  s.kind = StatementKind::kWith;
  next();
  while (current().kind != TokenKind::kBlockEnd) {
    if (!s.targets.empty()) expect_operator(",");
    s.targets.push_back(parse_target("", false));
    expect_operator("=");
    s.expressions.push_back(parse_expression());
  }
  Restore<bool> soft(soft_, false);
  s.blocks.push_back(parse_block({"endwith"}, true));
  return s;
}

Statement Parser::parse_generation() {
  Statement s;
  s.kind = StatementKind::kGeneration;
  has_generation_ = true;
  next();
  Restore<bool> soft(soft_, false);
  Restore<int> loops(loops_, 0);
  s.blocks.push_back(parse_block({"endgeneration"}, true));
  return s;
}

ExprPtr Parser::parse_target(std::string_view end_name, bool with_namespace) {
  ExprPtr target = parse_tuple(true, true, end_name, false, with_namespace);
  check_target(*target);
  return target;
}

void Parser::check_target(const Expr& target) const {
  switch (target.kind) {
    case ExprKind::kName:
      if (target.name == "loop" && loops_ > 0)
        fail_at(target.line, "Can't assign to special loop variable in for-loop target");
      return;
    case ExprKind::kNamespaceRef:
      return;
    case ExprKind::kTuple:
      for (const ExprPtr& item : target.children) check_target(*item);
      return;
    default:
      fail_at(target.line, "can't assign to this expression");
  }
}

Template parse_template(std::string_view source) {
  Template parsed = Parser(source).parse();
  analyze_scopes(parsed);
  return parsed;
}

}  // namespace wick::jinja
