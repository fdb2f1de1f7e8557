// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "api/internal.h"
#include "base/check.h"
#include "data/choices.h"
#include "train/scorer.h"

namespace wick {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One row says nothing of how rows scatter.
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Of a share that was counted over `rows`.
double share_error(double share, int64_t rows) {
  return rows > 1 ? std::sqrt(share * (1 - share) / static_cast<double>(rows - 1)) : kUnknown;
}

struct RowScore {
  double logp = 0;  // summed
  int64_t tokens = 0;
  double rejected_logp = 0;  // of a preference, whose chosen answer is the above
  int64_t rejected_tokens = 0;
  double margin() const { return logp - rejected_logp; }
};

void check_wanted(const EvalOptions& options) {
  if (options.should_stop && options.should_stop())
    fail(ErrorCode::kCancelled, "stopped before all rows were evaluated");
}

// The rows [0, count) of `set`.
std::vector<RowScore> score_rows(Model::Impl& m, const ExampleSet& set, int64_t count,
                                 const EvalOptions& options, bool with_adapter = true) {
  std::vector<RowScore> scores(static_cast<size_t>(count));
  if (count == 0) return scores;
  std::vector<int64_t> rows(scores.size());
  std::iota(rows.begin(), rows.end(), 0);
  const PackLimits limits = choose_limits(set, Order(set.size(), options.batch_size, 0, false),
                                          m.backend().tokens_at_once());
  Scorer scorer(m.config, *m.weights, with_adapter ? m.source() : ParamSource{}, limits,
                limits.tokens, m.backend().skips_rows());
  const StopWhileReading stop(*m.weights, options.should_stop);
  scorer.compile(m.backend(), *m.weights, with_adapter ? m.params : nullptr, nullptr);
  std::vector<float> logp(static_cast<size_t>(limits.targets));
  for (const Pack& pack : pack_rows(set, rows, limits, 0, 0, true)) {
    check_wanted(options);
    scorer.score(pack, logp);
    for (size_t t = 0; t < pack.targets.size() && pack.targets[t] >= 0; ++t) {
      RowScore& score =
          scores[static_cast<size_t>(pack.examples[static_cast<size_t>(pack.segment[t])])];
      const bool rejected = (pack.marks[t] & Pack::kRejected) != 0;
      (rejected ? score.rejected_logp : score.logp) += static_cast<double>(logp[t]);
      ++(rejected ? score.rejected_tokens : score.tokens);
    }
  }
  return scores;
}

void check_options(const EvalOptions& o) {
  for (const auto& [flag, value] :
       {std::pair{"--batch-size", o.batch_size}, {"--max-tokens", o.max_tokens}})
    if (value < 1) fail(ErrorCode::kInvalidArgument, flag, " is ", value, ", wanted at least 1");
}

// Mean and its standard error over rows.
std::pair<double, double> mean_and_error(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (double v : values) sum += v;
  const double mean = sum / std::max(1.0, n);
  for (double v : values) squares += (v - mean) * (v - mean);
  return {mean, n > 1 ? std::sqrt(squares / (n - 1) / n) : kUnknown};
}

PreferenceResult summarize_pairs(const std::vector<ExampleResult>& examples, bool has_reward) {
  std::vector<double> likelier, per_token, margins, rewarded, rewards;
  for (const ExampleResult& e : examples) {
    if (!e.is_pair) continue;
    const double margin = e.chosen_logp - e.rejected_logp;
    likelier.push_back(margin > 0 ? 1 : 0);
    per_token.push_back(e.chosen_logp / static_cast<double>(e.tokens) >
                                e.rejected_logp / static_cast<double>(e.rejected_tokens)
                            ? 1
                            : 0);
    margins.push_back(margin);
    rewarded.push_back(e.reward_margin > 0 ? 1 : 0);
    rewards.push_back(e.reward_margin);
  }
  PreferenceResult p;
  p.pairs = static_cast<int64_t>(margins.size());
  std::tie(p.accuracy, p.accuracy_stderr) = mean_and_error(likelier);
  std::tie(p.by_length, p.by_length_stderr) = mean_and_error(per_token);
  std::tie(p.margin, p.margin_stderr) = mean_and_error(margins);
  p.has_reward = has_reward;
  if (!has_reward) return p;
  std::tie(p.reward_accuracy, p.reward_accuracy_stderr) = mean_and_error(rewarded);
  std::tie(p.reward_margin, p.reward_margin_stderr) = mean_and_error(rewards);
  return p;
}

// Losses of the rows, and where there are preferences what is known of both answers.
void score_examples(Model::Impl& m, const ExampleSet& set, const EvalOptions& options,
                    EvalResult& result) {
  const std::vector<RowScore> scores = score_rows(m, set, result.rows, options);
  bool pairs = false;
  for (size_t i = 0; i < scores.size(); ++i) {
    const RowScore& score = scores[i];
    ExampleResult& e = result.examples[i];
    e.tokens = score.tokens;
    if (score.tokens > 0) e.loss = -score.logp / static_cast<double>(score.tokens);
    e.is_pair = score.tokens > 0 && score.rejected_tokens > 0;
    e.chosen_logp = score.logp;
    e.rejected_logp = score.rejected_logp;
    e.rejected_tokens = score.rejected_tokens;
    pairs = pairs || e.is_pair;
  }
  if (!pairs) return;
  const bool has_reward = m.params != nullptr;
  if (has_reward) {
    const std::vector<RowScore> base = score_rows(m, set, result.rows, options, false);
    for (size_t i = 0; i < scores.size(); ++i)
      result.examples[i].reward_margin = scores[i].margin() - base[i].margin();
  }
  result.preference = summarize_pairs(result.examples, has_reward);
}

void summarize_losses(EvalResult& result) {
  double sum = 0, weighted_square = 0;
  for (const ExampleResult& e : result.examples) {
    sum += e.loss * static_cast<double>(e.tokens);
    result.tokens += e.tokens;
  }
  const auto tokens = static_cast<double>(std::max<int64_t>(1, result.tokens));
  result.loss = sum / tokens;
  // Rows are the independent draws: the error of a ratio of sums over rows.
  for (const ExampleResult& e : result.examples) {
    double d = (e.loss - result.loss) * static_cast<double>(e.tokens);
    weighted_square += d * d;
  }
  const auto n = static_cast<double>(result.rows);
  result.loss_stderr =
      result.rows > 1 ? std::sqrt(weighted_square * n / (n - 1)) / tokens : kUnknown;
  result.perplexity = std::exp(result.loss);
  result.perplexity_stderr = result.perplexity * result.loss_stderr;
}

// Generates the last turn of each row that has one and compares it to the letter.
void match_answers(Model::Impl& m, const ExampleSet& set, const EvalOptions& options,
                   EvalResult& result) {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<ExampleResult*> owners;
  for (ExampleResult& e : result.examples) {
    std::optional<PromptAndAnswer> turn = last_turn(set[e.index], m);
    if (!turn || static_cast<int64_t>(turn->prompt.size()) >= m.config.max_positions) continue;
    e.has_match = true;
    e.prompt = m.words().decode(turn->prompt, false);
    e.expected = trimmed(m.words().decode(turn->answer));
    prompts.push_back(std::move(turn->prompt));
    owners.push_back(&e);
  }
  if (!prompts.empty()) {
    TextGenerator generator(m.backend(), m.config, *m.weights, m.words(), m.source(), m.params);
    DecodeOptions decode;
    // One more shows whether an answer of as many tokens is whole: the stop token comes behind it.
    decode.max_tokens = std::min(options.max_tokens, std::numeric_limits<int64_t>::max() - 1) + 1;
    decode.stop_tokens = m.stop_tokens();
    decode.should_stop = options.should_stop;
    int64_t done = 0;
    generator.generate_many(prompts, decode, options.batch_size, [&](size_t i, const Decoded& d) {
      ExampleResult& e = *owners[i];
      const bool longer = static_cast<int64_t>(d.tokens.size()) > options.max_tokens;
      e.answer = trimmed(longer ? m.words().decode(std::span(d.tokens).first(
                                      static_cast<size_t>(options.max_tokens)))
                                : d.text);
      e.exact_match = d.finish_reason == "stop" && e.answer == e.expected;
      if (options.on_progress) options.on_progress(++done, static_cast<int64_t>(prompts.size()));
      return true;
    });
    check_wanted(options);
  }
  for (const ExampleResult& e : result.examples) {
    result.match_rows += e.has_match;
    result.matches += e.exact_match;
  }
  if (result.match_rows > 0)
    result.exact_match =
        static_cast<double>(result.matches) / static_cast<double>(result.match_rows);
  result.exact_match_stderr = share_error(result.exact_match, result.match_rows);
}

}  // namespace

std::string trimmed(const std::string& text) {
  constexpr const char* kWhiteSpace = " \t\r\n";
  size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

EvalResult evaluate(Model& model, const Dataset& data, const EvalOptions& options) {
  check_options(options);
  const EngineTurn turn(model.engine());
  auto started = std::chrono::steady_clock::now();
  Model::Impl& m = model.impl();
  const ExampleSet& set = data.impl().rows;
  EvalResult result;
  result.rows = options.max_rows < 0 ? set.size() : std::min(options.max_rows, set.size());
  result.examples.resize(static_cast<size_t>(result.rows));
  for (size_t i = 0; i < result.examples.size(); ++i) {
    result.examples[i].index = static_cast<int64_t>(i);
    result.examples[i].line = set[static_cast<int64_t>(i)].line;
  }
  score_examples(m, set, options, result);
  summarize_losses(result);
  // Nothing can be drawn from logits that are none.
  if (options.exact_match && std::isfinite(result.loss)) match_answers(m, set, options, result);
  result.seconds = seconds_since(started);
  return result;
}

ChoiceResult evaluate_choices(Model& model, const std::vector<DataSource>& sources,
                              const std::string& split, const DatasetOptions& data,
                              const EvalOptions& options) {
  check_options(options);
  const EngineTurn turn(model.engine());
  auto started = std::chrono::steady_clock::now();
  Model::Impl& m = model.impl();
  const ChoiceSet set =
      ChoiceSet::load(sources, split, m.words(), m.chat_template ? &*m.chat_template : nullptr,
                      data_options(data), options.max_rows);
  const std::vector<RowScore> scores = score_rows(m, set.texts(), set.texts().size(), options);
  ChoiceResult result;
  int64_t right = 0, right_by_length = 0;
  for (const ChoiceQuestion& q : set.questions()) {
    ChoiceRow row{result.rows++, q.line, q.answer};
    double best = 0, best_by_length = 0;
    for (size_t c = 0; c < q.characters.size(); ++c) {
      const double logp = scores[q.first + c].logp;
      const double by_length = logp / static_cast<double>(std::max<int64_t>(1, q.characters[c]));
      if (c == 0 || logp > best) {
        best = logp;
        row.chosen = static_cast<int64_t>(c);
      }
      if (c == 0 || by_length > best_by_length) {
        best_by_length = by_length;
        row.chosen_by_length = static_cast<int64_t>(c);
      }
      row.logp.push_back(logp);
    }
    right += row.chosen == q.answer;
    right_by_length += row.chosen_by_length == q.answer;
    result.chance += 1.0 / static_cast<double>(q.characters.size());
    result.examples.push_back(std::move(row));
  }
  const auto n = static_cast<double>(std::max<int64_t>(1, result.rows));
  result.accuracy = static_cast<double>(right) / n;
  result.by_length = static_cast<double>(right_by_length) / n;
  result.accuracy_stderr = share_error(result.accuracy, result.rows);
  result.by_length_stderr = share_error(result.by_length, result.rows);
  result.chance /= n;
  result.seconds = seconds_since(started);
  return result;
}

}  // namespace wick
