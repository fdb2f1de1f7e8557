// SPDX-License-Identifier: Apache-2.0
// Evaluator: loss, perplexity, exact match and multiple choice of a model (with its adapter) on a
// data set, and whether two results differ by more than chance.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "wick/dataset.h"
#include "wick/model.h"

namespace wick {

struct EvalOptions {
  int64_t batch_size = 16;   // rows that are scored in one go, and decoded side by side
  int64_t max_rows = -1;     // the first N rows; -1: all
  bool exact_match = true;   // generate for chat and completions rows and compare
  int64_t max_tokens = 128;  // of an answer
  std::function<void(int64_t done, int64_t rows)> on_progress = {};
  // Asked while weights are read and between runs of the model: true throws kCancelled.
  std::function<bool()> should_stop = {};
};

struct ExampleResult {
  int64_t index = 0, line = 0;
  double loss = 0;     // mean over its trained tokens
  int64_t tokens = 0;  // trained
  bool has_match = false, exact_match = false;
  // Of a preference, whose loss and tokens are the chosen answer's: log p of both answers, and by
  // how much more than the reference the model prefers the chosen one.
  bool is_pair = false;
  double chosen_logp = 0, rejected_logp = 0, reward_margin = 0;
  int64_t rejected_tokens = 0;
  std::string prompt, expected, answer;  // where an answer was generated
};

// Of rows {prompt, chosen, rejected}. A reward is log p of an answer minus the same of the model
// without its adapter; training reports it times beta. Margins are chosen minus rejected.
struct PreferenceResult {
  int64_t pairs = 0;
  double accuracy = 0, accuracy_stderr = 0;    // the chosen answer is likelier
  double by_length = 0, by_length_stderr = 0;  // likelier per token
  double margin = 0, margin_stderr = 0;        // in log p
  bool has_reward = false;                     // an adapter is attached
  double reward_accuracy = 0, reward_accuracy_stderr = 0;
  double reward_margin = 0, reward_margin_stderr = 0;
};

struct EvalResult {
  // Over trained tokens; the errors take rows, not tokens, for independent, and are no number where
  // there is one row only.
  double loss = 0, loss_stderr = 0, perplexity = 0, perplexity_stderr = 0;
  int64_t rows = 0, tokens = 0;
  int64_t match_rows = 0, matches = 0;
  double exact_match = 0, exact_match_stderr = 0;  // share of match_rows
  double seconds = 0;
  PreferenceResult preference = {};  // where there are pairs
  std::vector<ExampleResult> examples;
};

// An answer counts as exact when it equals the last assistant turn, white space at the ends aside.
// Where the loss is no finite number no answers are made. Throws: kInvalidArgument for an option out
// of its range; kCancelled.
EvalResult evaluate(Model& model, const Dataset& data, const EvalOptions& options = {});

// Multiple choice: rows {"question" or "prompt", "choices": [texts], "answer": index, letter or
// text}. Each choice is scored as the answer to the question; stop tokens do not count.
struct ChoiceRow {
  int64_t index = 0, line = 0;
  int64_t answer = 0, chosen = 0, chosen_by_length = 0;
  std::vector<double> logp = {};  // of each choice, summed over its tokens
};
struct ChoiceResult {
  int64_t rows = 0;
  double accuracy = 0, accuracy_stderr = 0;    // the choice of highest log-probability
  double by_length = 0, by_length_stderr = 0;  // of highest log-probability per character
  double chance = 0;                           // of guessing
  double seconds = 0;
  std::vector<ChoiceRow> examples;
};
// Whether the first row of the file has choices.
bool has_choices(const std::vector<DataSource>& sources, const std::string& split);
// Throws: as Dataset::load.
ChoiceResult evaluate_choices(Model& model, const std::vector<DataSource>& sources,
                              const std::string& split, const DatasetOptions& data = {},
                              const EvalOptions& options = {});

// What is measured of row i under A and under B: a sum and over how many it is (loss: the sum of
// its tokens' losses and their number; a match: 0 or 1, and 1).
struct PairedRow {
  double a = 0, b = 0, weight = 1;
};
// Of two results on the same rows. The interval is of 95 %, by a bootstrap over rows (2,000 draws
// from the seed); p is the two-sided sign test's.
struct PairedDifference {
  int64_t rows = 0, a_higher = 0, b_higher = 0;
  double difference = 0, low = 0, high = 0;  // B - A, per weight
  double p = 1;
};
PairedDifference paired_difference(const std::vector<PairedRow>& rows, uint64_t seed = 0);
PairedDifference compare_losses(const EvalResult& a, const EvalResult& b, uint64_t seed = 0);
PairedDifference compare_matches(const EvalResult& a, const EvalResult& b, uint64_t seed = 0);
// Whether the chosen answer is likelier, over the rows that are pairs.
PairedDifference compare_preferences(const EvalResult& a, const EvalResult& b, uint64_t seed = 0);
PairedDifference compare_choices(const ChoiceResult& a, const ChoiceResult& b, uint64_t seed = 0);

}  // namespace wick
