// SPDX-License-Identifier: Apache-2.0
// The verbs of wick: one cmd_<verb>.cpp each.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/args.h"

namespace wick {

// Exit codes.
constexpr int kDone = 0, kFailed = 1, kWrongUse = 2, kInterrupted = 130;

// Declares a verb's options, summary and examples in `args`, which must outlive the result; the
// result owns what the options are read into, does the work once args.parse() has read them, and
// returns the exit code.
using Declare = std::function<int()> (*)(Args& args);

std::function<int()> declare_train(Args& args);
std::function<int()> declare_generate(Args& args);
std::function<int()> declare_chat(Args& args);
std::function<int()> declare_eval(Args& args);
std::function<int()> declare_merge(Args& args);
std::function<int()> declare_convert(Args& args);
std::function<int()> declare_data(Args& args);
std::function<int()> declare_plan(Args& args);
std::function<int()> declare_bench(Args& args);
std::function<int()> declare_tokenize(Args& args);
std::function<int()> declare_template(Args& args);
std::function<int()> declare_devices(Args& args);
std::function<int()> declare_completions(Args& args);

struct Verb {
  std::string name;
  Declare declare;
  bool hidden = false;
};
const std::vector<Verb>& verbs();

// The tables of all verbs that are not hidden, in order.
std::vector<std::unique_ptr<Args>> all_args();

}  // namespace wick
