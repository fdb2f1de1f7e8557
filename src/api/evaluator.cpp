// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "api/internal.h"
#include "base/check.h"
#include "train/scorer.h"

namespace wick {

namespace {

// Mean loss per row, in the order of `rows`.
void score_rows(Model::Impl& m, const ExampleSet& set, const std::vector<int64_t>& rows,
                std::vector<ExampleResult>& results) {
  PackLimits limits = choose_limits(set, Order(set.size(), 16, 0, false), 2048);
  Scorer scorer(m.config, *m.weights, m.source(), limits, limits.tokens);
  scorer.compile(m.backend(), *m.weights, m.params, nullptr);
  std::vector<float> logp(static_cast<size_t>(limits.targets));
  std::vector<double> sums(results.size(), 0.0);
  std::vector<size_t> place(static_cast<size_t>(set.size()), 0);
  for (size_t i = 0; i < rows.size(); ++i) place[static_cast<size_t>(rows[i])] = i;
  for (const Pack& pack : pack_rows(set, rows, limits, 0, 0, true)) {
    scorer.score(pack, logp);
    for (size_t t = 0; t < pack.targets.size() && pack.targets[t] >= 0; ++t) {
      size_t row = static_cast<size_t>(pack.examples[static_cast<size_t>(pack.segment[t])]);
      sums[place[row]] -= logp[t];
      ++results[place[row]].tokens;
    }
  }
  for (size_t i = 0; i < results.size(); ++i)
    if (results[i].tokens > 0) results[i].loss = sums[i] / static_cast<double>(results[i].tokens);
}

}  // namespace

std::string trimmed(const std::string& text) {
  constexpr const char* kWhiteSpace = " \t\r\n";
  size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

EvalResult evaluate(Model& model, const Dataset& data, const EvalOptions& options) {
  auto started = std::chrono::steady_clock::now();
  Model::Impl& m = model.impl();
  const ExampleSet& set = data.impl().rows;
  int64_t count = options.max_rows < 0 ? set.size() : std::min(options.max_rows, set.size());
  std::vector<int64_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);

  EvalResult result;
  result.rows = count;
  result.examples.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    result.examples[i].index = rows[i];
    result.examples[i].line = set[rows[i]].line;
  }
  score_rows(m, set, rows, result.examples);

  double sum = 0, weighted_square = 0;
  for (const ExampleResult& e : result.examples) {
    sum += e.loss * static_cast<double>(e.tokens);
    result.tokens += e.tokens;
  }
  result.loss = sum / static_cast<double>(std::max<int64_t>(1, result.tokens));
  // Rows are the independent draws: the error of a ratio of sums over rows.
  for (const ExampleResult& e : result.examples) {
    double d = (e.loss - result.loss) * static_cast<double>(e.tokens);
    weighted_square += d * d;
  }
  if (count > 1) {
    double n = static_cast<double>(count);
    result.loss_stderr = std::sqrt(weighted_square * n / (n - 1)) /
                         static_cast<double>(std::max<int64_t>(1, result.tokens));
  }
  result.perplexity = std::exp(result.loss);

  if (options.exact_match) {
    std::vector<std::vector<int32_t>> prompts;
    std::vector<size_t> owners;
    for (size_t i = 0; i < rows.size(); ++i) {
      std::optional<PromptAndAnswer> turn = last_turn(set[rows[i]], m);
      if (!turn || static_cast<int64_t>(turn->prompt.size()) >= m.config.max_positions) continue;
      ExampleResult& e = result.examples[i];
      e.has_match = true;
      e.prompt = m.words().decode(turn->prompt, false);
      e.expected = trimmed(m.words().decode(turn->answer));
      prompts.push_back(std::move(turn->prompt));
      owners.push_back(i);
    }
    if (!prompts.empty()) {
      TextGenerator generator(m.backend(), m.config, *m.weights, m.words(), m.source(), m.params);
      DecodeOptions decode;
      decode.max_tokens = options.max_tokens;
      decode.stop_tokens = m.stop_tokens();
      int64_t done = 0;
      generator.generate_many(prompts, decode, options.batch_size, [&](size_t i, const Decoded& d) {
        ExampleResult& e = result.examples[owners[i]];
        e.answer = trimmed(d.text);
        e.exact_match = e.answer == e.expected;
        if (options.on_progress) options.on_progress(++done, static_cast<int64_t>(prompts.size()));
        return true;
      });
    }
    for (const ExampleResult& e : result.examples) {
      result.match_rows += e.has_match;
      result.matches += e.exact_match;
    }
    if (result.match_rows > 0)
      result.exact_match =
          static_cast<double>(result.matches) / static_cast<double>(result.match_rows);
  }
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return result;
}

}  // namespace wick
