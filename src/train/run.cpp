// SPDX-License-Identifier: Apache-2.0
#include "train/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "base/process.h"
#include "train/preference.h"
#include "train/step.h"

namespace wick {

namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string spelt(double x) { return std::isnan(x) ? "nan" : cat(x); }

int64_t rows_per_update(const TrainOptions& o) { return o.batch_size * o.grad_accumulation_steps; }

}  // namespace

int64_t count_updates(const TrainOptions& o, int64_t rows) {
  if (o.iters > 0) return (o.iters - 1) / o.grad_accumulation_steps + 1;
  int64_t per_epoch = (rows + rows_per_update(o) - 1) / rows_per_update(o);
  // What 1.1 cannot say exactly begins no further update.
  const double updates = o.epochs * static_cast<double>(per_epoch);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(updates * (1 - 1e-12))));
}

int64_t count_evals(const TrainOptions& o, int64_t updates) {
  // Before the first update, after the last, and between.
  return 2 + (o.steps_per_eval > 0 ? (updates - 1) / o.steps_per_eval : 0);
}

int64_t count_saves(const TrainOptions& o, int64_t updates) {
  return 1 + (o.save_every > 0 ? (updates - 1) / o.save_every : 0);
}

std::vector<int64_t> valid_rows(const ExampleSet& valid, const TrainOptions& o) {
  int64_t rows = valid.size();
  // More batches than rows are all of them, also where the product would not fit.
  if (o.val_batches > 0 && o.val_batches < rows)
    rows = std::min(rows, o.val_batches * o.batch_size);
  return Order(valid.size(), rows, o.seed, true).update(0);
}

std::vector<Pack> valid_packs(const ExampleSet& valid, const TrainOptions& o,
                              const PackLimits& limits) {
  return pack_rows(valid, valid_rows(valid, o), limits, o.seed, 0, o.packing);
}

Schedule make_schedule(const TrainOptions& o, int64_t updates) {
  Schedule s;
  s.name = o.lr_schedule;
  s.peak = o.learning_rate;
  s.updates = updates;
  double warmup = o.warmup < 0 ? std::ceil(0.03 * static_cast<double>(updates)) : o.warmup;
  // mlx-lm's rises at its own pace, even where the run ends first.
  if (!o.warmup_from_init) warmup = std::min(warmup, static_cast<double>(updates));
  s.warmup = static_cast<int64_t>(warmup);
  s.warmup_init = o.warmup_init;
  s.end = o.lr_end;
  s.decay = o.lr_decay_steps;
  s.warmup_from_init = o.warmup_from_init;
  s.cycles = o.lr_cycles;
  s.decay_share = o.lr_decay_share;
  s.decay_rate = o.lr_decay_rate;
  s.step_size = o.lr_step_size;
  return s;
}

TrainRun::TrainRun(RunStep& step, RunSetup setup)
    : step_(step),
      setup_(std::move(setup)),
      order_(*setup_.train, rows_per_update(setup_.options), setup_.options.seed,
             setup_.options.shuffle),
      updates_(count_updates(setup_.options, setup_.train->rows_per_epoch())),
      schedule_(make_schedule(setup_.options, updates_)),
      time_left_(setup_.expected),
      started_(now_seconds()) {
  if (setup_.valid) valid_packs_ = valid_packs(*setup_.valid, setup_.options, step_.limits());
  if (Loss* kind = step_.loss_kind())
    kind->prepare(step_, *setup_.train, setup_.valid, setup_.should_give_up);
  if (setup_.options.resume) resume();
}

EvalReport TrainRun::evaluate(int64_t step, const StopAsked& stop) {
  Loss* kind = step_.loss_kind();
  EvalReport e = kind ? kind->evaluate(step_, valid_packs_, stop)
                      : evaluate_likelihood(step_, valid_packs_, stop);
  e.step = step;
  if (!std::isfinite(e.loss))
    fail_not_finite(step, cat(step > 0 ? cat("after update ", step) : "before the first update",
                              ": the held-out loss is ", spelt(e.loss)));
  e.best = best_step_ < 0 || e.loss < best_valid_;
  const bool lower = e.loss < lower_valid_ - setup_.options.early_stop_delta;
  stale_evals_ = lower ? 0 : stale_evals_ + 1;
  if (lower) lower_valid_ = e.loss;
  if (e.best) {
    best_valid_ = e.loss;
    best_step_ = step;
    if (keeps_best()) {
      best_params_ = {};  // not both at a time
      release_free_memory();
      best_params_ = step_.params();
      hold_folder();
      setup_.save_result(setup_.options.adapter_path + "/best", best_params_);
    }
  }
  return e;
}

std::string TrainRun::lines_of(int64_t index) const {
  std::string lines;
  for (int64_t row : order_.update(index))
    if (lines.size() < 60) lines += cat(lines.empty() ? "" : ", ", (*setup_.train)[row].line);
  return lines;
}

void TrainRun::fail_not_finite(int64_t index, const std::string& what) const {
  fail(ErrorCode::kInternal, what, "; training stopped", kept_words(),
       index > 0
           ? "; try a lower --learning-rate"
           : "; nothing was trained before it, so the model or the start of the adapter makes "
             "such numbers: see what wick eval says, and try --dtype f32");
}

void TrainRun::start_update(int64_t index) {
  const TrainOptions& o = setup_.options;
  Started& update = under_way_.emplace_back();
  update.index = index;
  update.since = now_seconds();
  const std::vector<int64_t> rows = order_.update(index);
  update.packs = pack_rows(*setup_.train, rows, step_.limits(), o.seed, order_.epoch_of(index),
                           o.packing, order_.copies(index));
  for (const Pack& pack : update.packs) update.targets += pack.used_targets;
  update.counted = update.targets;
  if (Loss* kind = step_.loss_kind()) {
    update.counted = 0;
    for (const Pack& pack : update.packs) update.counted += kind->count(pack);
    kind->begin_update(step_, update.packs);
  }
  const float weight = 1.0f / static_cast<float>(std::max<int64_t>(1, update.counted));
  const Hyper hyper = optimizer_hyper(o, schedule_.rate(index), index + 1);
  step_.start(update.packs, weight, {&hyper, 1});
}

float TrainRun::finish_update() {
  const Started& update = under_way_.front();
  const auto [loss, norm] = step_.finish();
  if (!std::isfinite(loss) || !std::isfinite(norm))
    fail_not_finite(
        update.index,
        cat("update ", update.index + 1, ": the loss is ", spelt(loss), " and the gradient's norm ",
            spelt(norm), " (", setup_.train->file(), " lines ", lines_of(update.index), ")"));
  for (const Pack& pack : update.packs) {
    result_.tokens += pack.used_tokens;
    window_tokens_ += pack.used_tokens;
    window_flops_ += step_.pack_flops(pack);
  }
  update_loss_ = loss;
  trained_tokens_ += update.targets;
  loss_sum_ += loss * static_cast<double>(update.counted);
  loss_tokens_ += update.counted;
  // One that was started early has the device to itself from the end of the one before.
  const double now = now_seconds(), seconds = now - std::max(update.since, finished_);
  finished_ = now;
  window_seconds_ += seconds;
  time_left_.update_took(update.index, seconds);
  under_way_.pop_front();
  return norm;
}

bool TrainRun::eval_due(int64_t step) const {
  const int64_t every = setup_.options.steps_per_eval;
  return step == updates_ || (every > 0 && step % every == 0);
}

bool TrainRun::save_due(int64_t step) const {
  const int64_t every = setup_.options.save_every;
  return step == updates_ || (every > 0 && step % every == 0);
}

bool TrainRun::may_start_behind(int64_t step) const {
  const Loss* kind = step_.loss_kind();
  return step_.runs_ahead() && !eval_due(step) && !save_due(step) &&
         !(kind && kind->asks_before_updates());
}

double TrainRun::seconds_so_far() const { return earlier_seconds_ + now_seconds() - started_; }

double TrainRun::seconds_left(int64_t step) const {
  const TrainOptions& o = setup_.options;
  const int64_t evals =
      valid_packs_.empty() ? 0 : count_evals(o, updates_) - count_evals(o, step) + 1;
  return time_left_.seconds(step, updates_, evals,
                            count_saves(o, updates_) - count_saves(o, step) + 1);
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
  if (setup_.peak_gflops > 0) r.utilisation = window_flops_ / (seconds * 1e9 * setup_.peak_gflops);
  r.peak_bytes = peak_memory_bytes();
  r.forecast_bytes = setup_.forecast_bytes;
  r.seconds = seconds_so_far();
  r.seconds_left = seconds_left(step);
  r.update_loss = update_loss_;
  return r;
}

void TrainRun::report(StepReport r, const TrainCallbacks& callbacks) {
  if (Loss* kind = step_.loss_kind()) r.preference = kind->take_report();
  loss_sum_ = window_seconds_ = window_flops_ = 0;
  loss_tokens_ = window_tokens_ = 0;
  result_.history.push_back(r);
  if (callbacks.on_step) callbacks.on_step(r);
}

void TrainRun::held_out(int64_t step, const TrainCallbacks& callbacks, const StopAsked& stop) {
  if (valid_packs_.empty()) return;
  const double start = now_seconds();
  EvalReport e = evaluate(step, stop);
  if (setup_.options.sample_at_evals && setup_.answer_prompts) e.samples = setup_.answer_prompts();
  time_left_.eval_took(now_seconds() - start);
  result_.evals.push_back(std::move(e));
  if (callbacks.on_eval) callbacks.on_eval(result_.evals.back());
}

bool TrainRun::look(int64_t step, const TrainCallbacks& callbacks) {
  try {
    held_out(step, callbacks, callbacks.should_stop);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kCancelled) throw;
    look_due_ = true;
    return false;
  }
  look_due_ = false;
  return true;
}

bool TrainRun::is_stale() const {
  return setup_.options.early_stop > 0 && stale_evals_ >= setup_.options.early_stop;
}

// The result is the best one where it is kept, else that of the last update.
void TrainRun::finish(int64_t step, const TrainCallbacks& callbacks) {
  const TrainOptions& o = setup_.options;
  result_.steps = result_.kept_step = step;
  result_.stopped_early = !result_.interrupted && step < updates_;
  result_.best_step = best_step_;
  result_.best_valid_loss = best_valid_;
  if (result_.interrupted) return;
  hold_folder();
  // A run that was killed between its last checkpoint and its result.
  if (!saved_) setup_.save_result(o.adapter_path, step_.params());
  if (best_params_.empty() || best_step_ == step) return;
  step_.set_params(best_params_);
  setup_.save_result(o.adapter_path, best_params_);
  result_.kept_step = best_step_;
  if (callbacks.on_message)
    callbacks.on_message(cat(o.adapter_path, " has the result of update ", best_step_,
                             ", whose held-out loss was the lowest, not that of update ", step));
}

int64_t TrainRun::train_all(const TrainCallbacks& callbacks) {
  const TrainOptions& o = setup_.options;
  // What a failure leaves under way reads packs that are going.
  const std::unique_ptr<RunStep, void (*)(RunStep*)> ended(&step_,
                                                           [](RunStep* s) { s->abandon(); });
  if (first_update_ == 0 && result_.evals.empty()) held_out(0, callbacks, setup_.should_give_up);
  int64_t done = first_update_;
  auto save_now = [&] {
    const double start = now_seconds();
    save(done, callbacks);
    time_left_.save_took(now_seconds() - start);
  };
  // A run that was killed between a checkpoint and its numbered result.
  if (done > 0 && o.save_numbered && !numbered_.empty() && numbered_.back() == done)
    save_numbered(done, step_.params());
  // A run that was stopped at a look goes on with it.
  if (look_due_) {
    result_.interrupted = !look(done, callbacks);
    if (!look_due_ && (done == updates_ || is_stale())) save_now();
  }
  while (done < updates_ && !result_.interrupted && !is_stale()) {
    if (under_way_.empty()) start_update(done);
    // The next update goes behind this one where nothing comes between them; then whoever may want
    // to stop is asked before it, since what was started is also finished.
    const bool asked = may_start_behind(done + 1);
    if (asked && callbacks.should_stop && callbacks.should_stop())
      result_.interrupted = true;
    else if (asked)
      start_update(done + 1);
    const float norm = finish_update();
    ++done;
    bool last = done == updates_;
    StepReport progress = make_report(done, schedule_.rate(done - 1), norm);
    if (Loss* kind = step_.loss_kind()) progress.preference = kind->take_update();
    if (callbacks.on_progress) callbacks.on_progress(progress);
    const bool reported = done % std::max<int64_t>(1, o.steps_per_report) == 0 || last || done == 1;
    if (reported) report(progress, callbacks);
    if (eval_due(done)) result_.interrupted = !look(done, callbacks);
    if (is_stale()) {
      last = true;
      if (!reported) report(progress, callbacks);
      if (callbacks.on_message && done < updates_)
        callbacks.on_message(cat("stopped after update ", done, ": ", stale_evals_,
                                 " looks at the held-out rows without a lower loss",
                                 o.early_stop_delta > 0 ? " by --early-stop-delta" : ""));
    }
    if (!last && !asked && callbacks.should_stop && callbacks.should_stop())
      result_.interrupted = true;
    if (last || result_.interrupted || save_due(done)) save_now();
  }
  finish(done, callbacks);
  return done;
}

std::string TrainRun::kept_words() const {
  const std::string& folder = setup_.options.adapter_path;
  if (checkpoint_step_ >= 0)
    return cat("; the checkpoint of update ", checkpoint_step_, " in ", folder, " is kept");
  return cat("; nothing of this run had been saved yet",
             std::filesystem::is_regular_file(checkpoint_path(folder))
                 ? cat(", and ", folder, " still has an earlier run's")
                 : "");
}

TrainResult TrainRun::run(const TrainCallbacks& callbacks) {
  const TrainOptions& o = setup_.options;
  if (callbacks.on_message)
    for (const std::string& line : messages_) callbacks.on_message(line);
  int64_t done = 0;
  try {
    done = train_all(callbacks);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIo) throw;
    throw Error(e.code(), cat(e.what(), kept_words(),
                              checkpoint_step_ < 0 ? "" : ": --resume goes on from it"));
  }
  if (!result_.history.empty()) {
    result_.first_loss = result_.history.front().loss;
    result_.final_loss = result_.history.back().loss;
  }
  if (!result_.evals.empty()) {
    result_.first_valid_loss = result_.evals.front().loss;
    result_.valid_loss =
        result_.kept_step == done ? result_.evals.back().loss : result_.best_valid_loss;
  }
  result_.seconds = seconds_so_far();
  result_.peak_bytes = peak_memory_bytes();
  result_.adapter_path = o.adapter_path;
  return result_;
}

}  // namespace wick
