// SPDX-License-Identifier: Apache-2.0
#include "train/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "base/process.h"
#include "train/preference.h"

namespace wick {

namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t rows_per_update(const TrainOptions& o) { return o.batch_size * o.grad_accumulation_steps; }

Json to_json(const StepReport& r) {
  Json j{{"step", r.step},
         {"epoch", r.epoch},
         {"loss", r.loss},
         {"learning_rate", r.learning_rate},
         {"grad_norm", r.grad_norm},
         {"tokens", r.tokens},
         {"trained_tokens", r.trained_tokens},
         {"tokens_per_second", r.tokens_per_second}};
  add_preference(j, r.preference);
  return j;
}

StepReport step_from_json(const Json& j, int64_t steps) {
  StepReport r;
  r.steps = steps;
  r.step = get_int(j, "step", "checkpoint", 0);
  r.epoch = get_int(j, "epoch", "checkpoint", 0);
  r.loss = get_float(j, "loss", "checkpoint", 0.0);
  r.learning_rate = get_float(j, "learning_rate", "checkpoint", 0.0);
  r.grad_norm = get_float(j, "grad_norm", "checkpoint", 0.0);
  r.tokens = get_int(j, "tokens", "checkpoint", 0);
  r.trained_tokens = get_int(j, "trained_tokens", "checkpoint", 0);
  r.tokens_per_second = get_float(j, "tokens_per_second", "checkpoint", 0.0);
  r.preference = preference_from_json(j);
  return r;
}

Json to_json(const EvalReport& e) {
  Json j{{"step", e.step}, {"loss", e.loss}, {"tokens", e.tokens}, {"rows", e.rows}};
  add_preference(j, e.preference);
  return j;
}

EvalReport eval_from_json(const Json& j) {
  EvalReport e;
  e.step = get_int(j, "step", "checkpoint", 0);
  e.loss = get_float(j, "loss", "checkpoint", 0.0);
  e.perplexity = std::exp(e.loss);
  e.tokens = get_int(j, "tokens", "checkpoint", 0);
  e.rows = get_int(j, "rows", "checkpoint", 0);
  e.preference = preference_from_json(j);
  return e;
}

}  // namespace

int64_t count_updates(const TrainOptions& o, int64_t rows) {
  if (o.iters > 0)
    return std::max<int64_t>(1,
                             (o.iters + o.grad_accumulation_steps - 1) / o.grad_accumulation_steps);
  int64_t per_epoch = (rows + rows_per_update(o) - 1) / rows_per_update(o);
  return o.epochs * per_epoch;
}

int64_t count_evals(const TrainOptions& o, int64_t updates) {
  // Before the first update, after the last, and between.
  return 2 + (o.steps_per_eval > 0 ? (updates - 1) / o.steps_per_eval : 0);
}

std::vector<Pack> valid_packs(const ExampleSet& valid, const TrainOptions& o,
                              const PackLimits& limits) {
  int64_t rows = valid.size();
  if (o.val_batches > 0) rows = std::min(rows, o.val_batches * o.batch_size);
  Order draw(valid.size(), rows, o.seed, true);
  return pack_rows(valid, draw.update(0), limits, o.seed, 0, o.packing);
}

Schedule make_schedule(const TrainOptions& o, int64_t updates) {
  Schedule s;
  s.name = o.lr_schedule;
  s.peak = o.learning_rate;
  s.updates = updates;
  double warmup = o.warmup < 0 ? std::ceil(0.03 * static_cast<double>(updates)) : o.warmup;
  s.warmup = std::min<int64_t>(static_cast<int64_t>(warmup), updates);
  s.warmup_init = o.warmup_init;
  s.end = o.lr_end;
  s.decay = o.lr_decay_steps;
  return s;
}

TrainRun::TrainRun(TrainStep& step, RunSetup setup)
    : step_(step),
      setup_(std::move(setup)),
      order_(setup_.train->size(), rows_per_update(setup_.options), setup_.options.seed,
             setup_.options.shuffle),
      updates_(count_updates(setup_.options, setup_.train->size())),
      schedule_(make_schedule(setup_.options, updates_)) {
  if (setup_.valid) valid_packs_ = valid_packs(*setup_.valid, setup_.options, step_.limits());
  if (Loss* kind = step_.loss_kind()) kind->prepare(step_, *setup_.train, setup_.valid);
  if (setup_.options.resume) resume();
}

void TrainRun::resume() {
  std::optional<Checkpoint> c = load_checkpoint(setup_.options.adapter_path);
  if (!c)
    fail(ErrorCode::kNotFound, checkpoint_path(setup_.options.adapter_path).string(),
         ": no such checkpoint; leave --resume out to start from the beginning");
  std::string difference = first_difference(c->run, setup_.identity);
  if (!difference.empty())
    fail(ErrorCode::kInvalidArgument, checkpoint_path(setup_.options.adapter_path).string(),
         ": was made by another run (", difference,
         "); use the same options and data, or another --adapter-path");
  if (static_cast<int64_t>(c->params.size()) != step_.trainable().layout.size())
    fail(ErrorCode::kCorruptFile, checkpoint_path(setup_.options.adapter_path).string(), ": holds ",
         c->params.size(), " parameters, this run has ", step_.trainable().layout.size());
  step_.set_params(c->params);
  step_.set_moments(c->m, c->v);
  first_update_ = c->step;
  const Json& p = c->progress;
  result_.tokens = get_int(p, "tokens", "checkpoint", 0);
  trained_tokens_ = get_int(p, "trained_tokens", "checkpoint", 0);
  earlier_seconds_ = get_float(p, "seconds", "checkpoint", 0.0);
  if (const Json* best = find_member(p, "best_valid_loss")) {
    best_valid_ = best->get<double>();
    has_best_ = true;
  }
  if (const Json* list = find_member(p, "history"))
    for (const Json& j : *list) result_.history.push_back(step_from_json(j, updates_));
  if (const Json* list = find_member(p, "evals"))
    for (const Json& j : *list) result_.evals.push_back(eval_from_json(j));
}

EvalReport TrainRun::evaluate(int64_t step) {
  const double start = now_seconds();
  Loss* kind = step_.loss_kind();
  EvalReport e =
      kind ? kind->evaluate(step_, valid_packs_) : evaluate_likelihood(step_, valid_packs_);
  e.step = step;
  e.best = !has_best_ || e.loss < best_valid_;
  if (e.best) {
    best_valid_ = e.loss;
    has_best_ = true;
  }
  eval_sum_ += now_seconds() - start;
  ++evals_done_;
  return e;
}

void TrainRun::save(int64_t step, const TrainCallbacks& callbacks) {
  Checkpoint c;
  c.step = step;
  c.params = step_.params();
  c.m = step_.moments(0);
  c.v = step_.moments(1);
  c.run = setup_.identity;
  Json history = Json::array(), evals = Json::array();
  for (const StepReport& r : result_.history) history.push_back(to_json(r));
  for (const EvalReport& e : result_.evals) evals.push_back(to_json(e));
  c.progress = Json{{"tokens", result_.tokens},
                    {"trained_tokens", trained_tokens_},
                    {"seconds", earlier_seconds_ + now_seconds() - started_},
                    {"history", history},
                    {"evals", evals}};
  if (has_best_) c.progress["best_valid_loss"] = best_valid_;
  save_checkpoint(setup_.options.adapter_path, c);
  setup_.save_result(c.params);
  if (callbacks.on_save) callbacks.on_save({step, setup_.options.adapter_path});
}

void TrainRun::fail_not_finite(int64_t index, double loss, float norm) const {
  std::string lines;
  for (int64_t row : order_.update(index))
    if (lines.size() < 60) lines += cat(lines.empty() ? "" : ", ", (*setup_.train)[row].line);
  bool saved = std::filesystem::exists(checkpoint_path(setup_.options.adapter_path));
  fail(ErrorCode::kInternal, "update ", index + 1, ": the loss is ", loss,
       " and the gradient's norm ", norm, " (", setup_.train->file(), " lines ", lines,
       "); training stopped, ",
       saved ? cat("the last good checkpoint in ", setup_.options.adapter_path, " is kept")
             : std::string("nothing had been saved yet"),
       "; try a lower --learning-rate");
}

double TrainRun::train_one(int64_t index, double rate, float& norm) {
  const TrainOptions& o = setup_.options;
  double start = now_seconds();
  std::vector<int64_t> rows = order_.update(index);
  std::vector<Pack> packs =
      pack_rows(*setup_.train, rows, step_.limits(), o.seed, order_.epoch_of(index), o.packing);
  int64_t targets = 0;
  for (const Pack& pack : packs) targets += pack.used_targets;
  AdamwSettings s;
  s.learning_rate = static_cast<float>(rate);
  s.beta1 = static_cast<float>(o.beta1);
  s.beta2 = static_cast<float>(o.beta2);
  s.eps = static_cast<float>(o.eps);
  s.weight_decay = static_cast<float>(o.weight_decay);
  s.clip = static_cast<float>(o.grad_clip);
  s.step = index + 1;
  int64_t counted = targets;
  if (Loss* kind = step_.loss_kind()) {
    counted = 0;
    for (const Pack& pack : packs) counted += kind->count(pack);
    kind->begin_update(step_, packs);
  }
  const float weight = 1.0f / static_cast<float>(std::max<int64_t>(1, counted));
  const TrainStep::Stepped done = step_.step(packs, weight, s);
  const double loss = done.loss;
  norm = done.norm;
  if (!std::isfinite(loss) || !std::isfinite(norm)) fail_not_finite(index, loss, norm);
  for (const Pack& pack : packs) {
    result_.tokens += pack.used_tokens;
    window_tokens_ += pack.used_tokens;
  }
  trained_tokens_ += targets;
  loss_sum_ += loss * static_cast<double>(counted);
  loss_tokens_ += counted;
  window_packs_ += static_cast<int64_t>(packs.size());
  const double seconds = now_seconds() - start;
  window_seconds_ += seconds;
  update_sum_ += seconds;
  ++updates_done_;
  return loss;
}

// The forecast counts as much as its first few measurements, so that the first line is no guess and
// the later ones are what was measured.
double TrainRun::seconds_left(int64_t step) const {
  auto expected = [](double forecast, double sum, int64_t count) {
    const double weight = forecast > 0 ? 3 : 0;
    const double n = static_cast<double>(count) + weight;
    return n > 0 ? (weight * forecast + sum) / n : 0;
  };
  double left = static_cast<double>(updates_ - step) *
                expected(setup_.update_seconds, update_sum_, updates_done_);
  if (!valid_packs_.empty()) {
    const int64_t evals =
        count_evals(setup_.options, updates_) - count_evals(setup_.options, step) + 1;
    left += static_cast<double>(evals) * expected(setup_.eval_seconds, eval_sum_, evals_done_);
  }
  return left;
}

StepReport TrainRun::make_report(int64_t step, double rate, double norm) const {
  StepReport r;
  r.step = step;
  r.steps = updates_;
  r.epoch = order_.epoch_of(step - 1);
  r.loss = loss_sum_ / static_cast<double>(std::max<int64_t>(1, loss_tokens_));
  r.learning_rate = rate;
  r.grad_norm = norm;
  r.tokens = result_.tokens;
  r.trained_tokens = trained_tokens_;
  double seconds = std::max(window_seconds_, 1e-9);
  r.tokens_per_second = static_cast<double>(window_tokens_) / seconds;
  if (setup_.peak_gflops > 0)
    r.utilisation = step_.micro_flops() * static_cast<double>(window_packs_) /
                    (seconds * 1e9 * setup_.peak_gflops);
  r.peak_bytes = peak_memory_bytes();
  r.forecast_bytes = setup_.forecast_bytes;
  r.seconds = earlier_seconds_ + now_seconds() - started_;
  r.seconds_left = seconds_left(step);
  return r;
}

void TrainRun::report(StepReport r, const TrainCallbacks& callbacks) {
  if (Loss* kind = step_.loss_kind()) r.preference = kind->take_report();
  loss_sum_ = window_seconds_ = 0;
  loss_tokens_ = window_tokens_ = window_packs_ = 0;
  result_.history.push_back(r);
  if (callbacks.on_step) callbacks.on_step(r);
}

TrainResult TrainRun::run(const TrainCallbacks& callbacks) {
  const TrainOptions& o = setup_.options;
  started_ = now_seconds();
  auto held_out = [&](int64_t step) {
    if (valid_packs_.empty()) return;
    result_.evals.push_back(evaluate(step));
    if (callbacks.on_eval) callbacks.on_eval(result_.evals.back());
  };
  if (first_update_ == 0) held_out(0);
  int64_t done = first_update_;
  float norm = 0;
  while (done < updates_ && !result_.interrupted) {
    const double rate = schedule_.rate(done);
    train_one(done, rate, norm);
    ++done;
    const bool last = done == updates_;
    const StepReport progress = make_report(done, rate, norm);
    if (callbacks.on_progress) callbacks.on_progress(progress);
    if (done % std::max<int64_t>(1, o.steps_per_report) == 0 || last || done == 1)
      report(progress, callbacks);
    if (last || (o.steps_per_eval > 0 && done % o.steps_per_eval == 0)) held_out(done);
    result_.interrupted = !last && callbacks.should_stop && callbacks.should_stop();
    if (last || result_.interrupted || (o.save_every > 0 && done % o.save_every == 0))
      save(done, callbacks);
  }
  result_.steps = done;
  if (!result_.history.empty()) {
    result_.first_loss = result_.history.front().loss;
    result_.final_loss = result_.history.back().loss;
  }
  if (!result_.evals.empty()) {
    result_.first_valid_loss = result_.evals.front().loss;
    result_.valid_loss = result_.evals.back().loss;
  }
  result_.seconds = earlier_seconds_ + now_seconds() - started_;
  result_.peak_bytes = peak_memory_bytes();
  result_.adapter_path = o.adapter_path;
  return result_;
}

}  // namespace wick
