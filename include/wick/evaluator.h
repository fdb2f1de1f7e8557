// SPDX-License-Identifier: Apache-2.0
// Evaluator: loss, perplexity and exact match of a model (with its adapter) on a data set.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "wick/dataset.h"
#include "wick/model.h"

namespace wick {

struct EvalOptions {
  int64_t batch_size = 16;   // sequences decoded side by side
  int64_t max_rows = -1;     // the first N rows; -1: all
  bool exact_match = true;   // generate for chat and completions rows and compare
  int64_t max_tokens = 128;  // of an answer
  std::string system_prompt = {};
  std::function<void(int64_t done, int64_t rows)> on_progress = {};
};

struct ExampleResult {
  int64_t index = 0, line = 0;
  double loss = 0;     // mean over its trained tokens
  int64_t tokens = 0;  // trained
  bool has_match = false, exact_match = false;
  std::string prompt, expected, answer;  // where an answer was generated
};

struct EvalResult {
  double loss = 0, loss_stderr = 0, perplexity = 0;  // over trained tokens
  int64_t rows = 0, tokens = 0;
  int64_t match_rows = 0, matches = 0;
  double exact_match = 0;  // share of match_rows
  double seconds = 0;
  std::vector<ExampleResult> examples;
};

// An answer counts as exact when it equals the last assistant turn, white space at the ends aside.
EvalResult evaluate(Model& model, const Dataset& data, const EvalOptions& options = {});

}  // namespace wick
