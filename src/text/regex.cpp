// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "base/check.h"

namespace wick {

namespace {

// Generous for any real text, small enough that a hostile pair of expression and text ends within
// seconds and below a fixed amount of memory.
constexpr uint32_t kMatchLimit = 5'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kMaxExpression = 1 << 16;

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;

std::string pcre_message(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

using Compiled = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;

}  // namespace

bool pcre_knows(std::string_view expression) {
  int error = 0;
  PCRE2_SIZE at = 0;
  return Compiled(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr)) != nullptr;
}

struct Regex::Code {
  Compiled code;
  MatchContext context;
  std::string expression;
};

struct Regex::Search::State {
  const Regex::Code* code;
  std::string_view subject;
  MatchData data;
};

Regex::Regex(std::string_view expression, std::string_view where)
    : code_(std::make_unique<Code>()) {
  if (expression.size() > kMaxExpression)
    fail(ErrorCode::kUnsupported, where, ": a regular expression of ", expression.size(),
         " bytes; wick takes at most ", kMaxExpression);
  std::string pattern = pcre_from_oniguruma(expression, where);
  CompileContext compile(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(compile.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  code_->expression = expression;
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                  &error, &at, compile.get()));
  if (!code_->code)
    fail(ErrorCode::kUnsupported, where, ": the regular expression \"", expression,
         "\" cannot be used: ", pcre_message(error), " at byte ", at, " of \"", pattern, "\"");
  // Without JIT (it can be switched off in the system's policy) the interpreter does the work.
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);
  code_->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(code_->context.get(), kMatchLimit);
  pcre2_set_heap_limit(code_->context.get(), kHeapLimitKib);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Search::Search(const Regex& regex, std::string_view subject)
    : state_(std::make_unique<State>()) {
  state_->code = regex.code_.get();
  state_->subject = subject;
  state_->data.reset(pcre2_match_data_create(1, nullptr));
  WICK_CHECK(state_->data, "no memory for a match");
}

Regex::Search::~Search() = default;

std::optional<Range> Regex::Search::find(size_t from) {
  auto attempt = [&](uint32_t options) {
    return pcre2_match(state_->code->code.get(),
                       reinterpret_cast<PCRE2_SPTR>(state_->subject.data()), state_->subject.size(),
                       from, options | PCRE2_NO_UTF_CHECK, state_->data.get(),
                       state_->code->context.get());
  };
  int result = attempt(0);
  // The JIT's stack is small on purpose; the interpreter keeps its own on the heap.
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = attempt(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return {};
  if (result < 0)
    fail(ErrorCode::kInvalidArgument, "the tokenizer's regular expression \"",
         state_->code->expression, "\" gave up at byte ", from, " of a text of ",
         state_->subject.size(), " bytes: ", pcre_message(result));
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(state_->data.get());
  // \K in a look-ahead can set the start behind the end or before `from`.
  if (found[0] > found[1] || found[0] < from)
    fail(ErrorCode::kUnsupported, "the tokenizer's regular expression \"", state_->code->expression,
         "\" moves the start of a match with \\K");
  return Range{found[0], found[1]};
}

}  // namespace wick
