// SPDX-License-Identifier: Apache-2.0
// Prompts that a run answers before, after and at its looks, and what that takes.
#include <algorithm>
#include <map>
#include <memory>

#include "api/trainer_impl.h"
#include "base/process.h"
#include "infer/generator.h"
#include "train/probe.h"

namespace wick {

namespace {

constexpr int64_t kAnswerTokens = 64;

// Of a prompt what the one before it has left in the cache; its last token is run again.
size_t common_tokens(const std::vector<int32_t>& before, const std::vector<int32_t>& prompt) {
  const auto end = std::mismatch(before.begin(), before.end(), prompt.begin(), prompt.end()).second;
  const auto same = static_cast<size_t>(end - prompt.begin());
  return std::min(same, prompt.empty() ? 0 : prompt.size() - 1);
}

}  // namespace

std::vector<PromptAndAnswer> Trainer::Impl::sample_prompts() const {
  std::vector<PromptAndAnswer> prompts;
  const Model::Impl& m = model->impl();
  for (const std::string& text : options.sample_prompts) {
    std::vector<Message> messages;
    if (!options.dataset.system_prompt.empty())
      messages.push_back({"system", options.dataset.system_prompt});
    messages.push_back({"user", text});
    ChatOptions chat;
    chat.template_config_json = options.dataset.chat_template_config;
    chat.date = options.dataset.date;
    bool rendered = model->has_chat_template();
    prompts.push_back(
        {m.words().encode_ids(rendered ? model->render_chat(messages, chat) : text, !rendered),
         {},
         text});
  }
  if (!prompts.empty()) return prompts;
  const ExampleSet& shown = valid ? *valid : train;
  for (int64_t i = 0; i < shown.size() && prompts.size() < Impl::kSamples; ++i)
    if (std::optional<PromptAndAnswer> turn = last_turn(shown[i], m)) prompts.push_back(*turn);
  return prompts;
}

std::vector<std::string> Trainer::Impl::answer(const std::vector<PromptAndAnswer>& prompts,
                                               BufferPtr params, const StopAsked& stop) {
  std::vector<std::string> texts;
  if (prompts.empty()) return texts;
  Model::Impl& m = model->impl();
  const int64_t before = current_memory_bytes();
  const ParamSource source = adapter ? ParamSource{adapter.get(), nullptr} : trainable->source();
  auto generator = std::make_unique<TextGenerator>(m.backend(), m.config, *m.weights, m.words(),
                                                   source, std::move(params));
  DecodeOptions decode;
  decode.max_tokens = kAnswerTokens;
  decode.stop_tokens = m.stop_tokens();
  decode.should_stop = stop;
  for (const PromptAndAnswer& p : prompts) {
    if (stop && stop()) break;
    // Samples are for the report: a model that gives no numbers any more is the run's to report.
    try {
      texts.push_back(generator->generate(p.prompt, decode).text);
    } catch (const Error& e) {
      texts.push_back(cat("(no answer: ", e.what(), ")"));
    }
  }
  const int64_t at_most = current_memory_bytes();
  if (answered) {
    answer_bytes = std::max(answer_bytes, at_most - before);
    return texts;
  }
  // Code that ran for the first time stays, and is not needed again.
  generator.reset();
  release_free_memory();
  const int64_t after = current_memory_bytes();
  answer_bytes = std::max<int64_t>(0, at_most - after);
  answer_code_bytes = std::max<int64_t>(0, after - before);
  answered = true;
  return texts;
}

// The plans that answers run by, each with how often, recorded only.
std::vector<Trainer::Impl::AnswerPlan> Trainer::Impl::answer_plans() const {
  const Model::Impl& m = model->impl();
  const bool known = !forecast.assumed_rows || !options.sample_prompts.empty();
  if (!m.tokenizer || !known) return {};
  const ParamSource source = adapter ? ParamSource{adapter.get(), nullptr} : trainable->source();
  const std::vector<PromptAndAnswer> prompts = sample_prompts();
  int64_t longest = 0, targets = 0;
  for (const PromptAndAnswer& p : prompts) longest = std::max(longest, std::ssize(p.prompt));
  for (int64_t i = 0; i < train.size(); ++i) targets += row_size(train[i]).targets;
  const int64_t context = TextGenerator::context_for(m.config, longest + kAnswerTokens);
  std::map<int64_t, double> runs;  // by their tokens
  std::vector<int32_t> before;
  for (const PromptAndAnswer& p : prompts) {
    // A prompt that does not fit is not answered.
    if (std::ssize(p.prompt) >= m.config.max_positions) continue;
    int64_t left = std::ssize(p.prompt) - static_cast<int64_t>(common_tokens(before, p.prompt));
    for (; left > 0; left -= DecoderEngine::kMostTokens)
      runs[DecoderEngine::tokens_of_run(left)] += 1;
    // As long as what is learned is: who has learned it ends there.
    const int64_t common = targets / std::max<int64_t>(1, train.size());
    runs[1] += static_cast<double>(std::clamp<int64_t>(common, 1, kAnswerTokens) - 1);
    before = p.prompt;
  }
  std::vector<AnswerPlan> plans;
  for (const auto& [tokens, count] : runs)
    plans.push_back(
        {tokens, count, std::min(context, longest + kAnswerTokens),
         DecoderEngine::record(m.config, *m.weights, m.backend(), source, 1, context, tokens)});
  return plans;
}

// Of an engine: its cache, programs with what an adapter has frozen, arena and the logits, and code
// that runs for the first time.
int64_t Trainer::Impl::guessed_answer_bytes() const {
  constexpr int64_t kCodeBytes = 2'500'000;
  const Model::Impl& m = model->impl();
  int64_t bytes = 0, arena = 0;
  const std::vector<AnswerPlan> plans = answer_plans();
  if (!plans.empty()) bytes = kCodeBytes;
  const auto frozen = static_cast<int64_t>(adapter ? adapter->frozen().size() * sizeof(float) : 0);
  for (const AnswerPlan& a : plans) {
    const Plan& plan = a.plan->plan();
    const MemoryForecast f = forecast_memory(plan, m.backend());
    arena = std::max(arena, f.arena);
    bytes += f.feeds + frozen + kProgramStepBytes * std::ssize(plan.steps);
    if (a.tokens > 1) continue;
    const auto element = static_cast<int64_t>(dtype_bytes(m.weights->compute()));
    bytes += 2 * m.config.layers * a.positions * m.config.kv_width() * element;
    bytes += 2 * static_cast<int64_t>(sizeof(float)) * m.config.vocab;
  }
  return bytes + arena;
}

double Trainer::Impl::guessed_answer_seconds(const SpeedProbe& probe) const {
  double seconds = 0;
  for (const AnswerPlan& a : answer_plans()) {
    const auto attended = static_cast<double>(a.positions) / 2;
    const double each = a.tokens > 1 ? probe.seconds(a.plan->plan(), attended)
                                     : probe.token_seconds(forecast.weights);
    seconds += a.count * each;
  }
  return seconds;
}

void Trainer::Impl::set_answer_seconds(double seconds) {
  if (!timed || !valid) return;
  const double more = seconds - 1e-3 * forecast.answer_ms;
  const double looks = static_cast<double>(count_evals(options, forecast.updates));
  forecast.answer_ms = 1e3 * seconds;
  forecast.eval_ms += 1e3 * more;
  forecast.total_seconds += more * looks;
  forecast.total_seconds_low += kEstimatedLow * more * looks;
  forecast.total_seconds_high += kEstimatedHigh * more * looks;
}

}  // namespace wick
