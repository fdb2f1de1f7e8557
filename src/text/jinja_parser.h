// SPDX-License-Identifier: Apache-2.0
// Recursive descent over tokens, with jinja2's grammar and precedence. Private to the parser's
// files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace wick::jinja {

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Template parse();

 private:
  // Bounds recursion of the parser, the evaluator and destructors alike.
  static constexpr int kMaxNesting = 100;
  static constexpr int kMaxHeight = 200;

  class Nested {
   public:
    explicit Nested(Parser& p);
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& parser_;
  };

  // Sets a flag for the life of a scope.
  template <typename T>
  struct Restore {
    T& slot;
    T old;
    Restore(T& s, T value) : slot(s), old(s) { s = value; }
    ~Restore() { slot = old; }
    Restore(const Restore&) = delete;
    Restore& operator=(const Restore&) = delete;
  };

  const Token& current() const { return tokens_[pos_]; }
  const Token& look() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view op);
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_identifier();
  void expect(TokenKind kind, const char* what);
  [[noreturn]] void fail_at(int line, const std::string& message) const;
  [[noreturn]] void refuse(int line, const std::string& message) const;
  std::string describe(const Token& token) const;

  // statements
  std::vector<Statement> parse_body(const std::vector<std::string>& ends);
  Block parse_block(const std::vector<std::string>& ends, bool drop_end);
  void parse_statement(std::vector<Statement>& out);
  Statement parse_if();
  Statement parse_for();
  Statement parse_set();
  Statement parse_macro();
  Statement parse_call_block();
  Statement parse_filter_block();
  Statement parse_with();
  Statement parse_generation();
  void parse_signature(Statement& statement);
  ExprPtr parse_target(std::string_view end_name, bool with_namespace);
  void check_target(const Expr& target) const;

  // expressions
  ExprPtr make(ExprKind kind, int line) const;
  ExprPtr finish(ExprPtr expr) const;
  ExprPtr binary(ExprKind kind, int line, ExprPtr left, ExprPtr right,
                 const std::string& op = "") const;
  ExprPtr parse_expression(bool with_condition = true);
  ExprPtr parse_condition();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter = true);
  ExprPtr parse_primary(bool with_namespace = false);
  ExprPtr parse_tuple(bool simplified, bool with_condition, std::string_view end_name,
                      bool parentheses, bool with_namespace);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filter_expression(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  void parse_arguments(Expr& call);
  ExprPtr parse_call(ExprPtr node);
  ExprPtr parse_filter(ExprPtr node, bool start_inline = false);
  ExprPtr parse_test(ExprPtr node);
  std::string parse_dotted_name();

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0;
  int loops_ = 0;      // around the statement, inside the current macro
  bool soft_ = false;  // in a branch: an unknown filter is an error only when it is used
  bool has_generation_ = false;
};

}  // namespace wick::jinja
