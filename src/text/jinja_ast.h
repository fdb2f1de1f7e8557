// SPDX-License-Identifier: Apache-2.0
// A parsed template. One struct for expressions and one for statements: which fields count is said
// by the kind.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace wick::jinja {

enum class ExprKind {
  kConst,         // value
  kName,          // name
  kNamespaceRef,  // name.attribute, only as a target
  kList,
  kTuple,
  kDict,       // children: key, value, key, value, …
  kAttribute,  // children[0].name
  kItem,       // children[0][children[1]]
  kSlice,      // children[0][children[1]:children[2]:children[3]], the last three may be null
  kCall,       // children[0](…)
  kFilter,     // children[0] | name(…); children[0] is null where a block is filtered
  kTest,       // children[0] is name(…)
  kNot,
  kNegative,
  kPositive,
  kBinary,   // children[0] name children[1]
  kConcat,   // children joined by ~
  kCompare,  // children[0] operators[0] children[1] operators[1] …
  kAnd,
  kOr,
  kCondition,  // children: test, then, else (may be null)
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 1;
  int height = 1;
  std::string name, attribute;
  Value value;
  std::vector<ExprPtr> children;
  std::vector<std::string> operators;
  // of calls, filters and tests
  std::vector<ExprPtr> arguments;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;
};

struct Statement;

// Statements that share a scope of their own, or, as branches of `if`, that of their surroundings.
struct Block {
  std::vector<Statement> body;
  // Names that this scope assigns before it reads them, and that no scope around it knows. jinja2
  // decides scopes before it runs: until assigned they are undefined here, even where the caller
  // passed a variable of that name.
  std::vector<std::string> hidden;
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // may be null
};

enum class StatementKind {
  kOutput,       // expressions
  kIf,           // conditions[i] → blocks[i]; a last block without condition is the else
  kFor,          // target in expression [if condition]: block, blocks[1] the else
  kSet,          // target = expression
  kSetBlock,     // target = block through filter (may be null)
  kMacro,        // name(parameters): block
  kCall,         // expression is the call, parameters and block the caller
  kFilterBlock,  // expression is the filter
  kWith,         // targets = expressions: block
  kBreak,
  kContinue,
  kGeneration,  // block
};

struct Statement {
  StatementKind kind = StatementKind::kOutput;
  int line = 1;
  std::string name;
  std::vector<ExprPtr> expressions;
  std::vector<ExprPtr> conditions;
  std::vector<ExprPtr> targets;
  std::vector<Parameter> parameters;
  std::vector<Block> blocks;
  bool recursive = false;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
};

struct Template {
  Block root;
  bool has_generation = false;
};

// Parses and checks. Throws: SyntaxError (jinja_lexer.h).
Template parse_template(std::string_view source);

// Fills Block::hidden of every scope and the uses_… of macros.
void analyze_scopes(Template& parsed);

}  // namespace wick::jinja
