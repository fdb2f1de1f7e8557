// SPDX-License-Identifier: Apache-2.0
// What of a run goes into its checkpoints, and back.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/check.h"
#include "base/process.h"
#include "train/preference.h"
#include "train/run.h"

namespace wick {

namespace {

Json to_json(const StepReport& r) {
  Json j{{"step", r.step},
         {"epoch", r.epoch},
         {"loss", r.loss},
         {"learning_rate", r.learning_rate},
         {"grad_norm", r.grad_norm},
         {"tokens", r.tokens},
         {"trained_tokens", r.trained_tokens},
         {"update_loss", r.update_loss},
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
  r.update_loss = get_float(j, "update_loss", "checkpoint", 0.0);
  r.preference = preference_from_json(j);
  return r;
}

Json to_json(const EvalReport& e) {
  Json j{
      {"step", e.step}, {"loss", e.loss}, {"tokens", e.tokens}, {"rows", e.rows}, {"best", e.best}};
  for (const EvalSample& s : e.samples)
    j["samples"].push_back(Json{{"prompt", s.prompt}, {"answer", s.answer}});
  add_preference(j, e.preference);
  return j;
}

EvalReport eval_from_json(const Json& j) {
  EvalReport e;
  e.step = get_int(j, "step", "checkpoint", 0);
  e.loss = get_float(j, "loss", "checkpoint", 0.0);
  e.tokens = get_int(j, "tokens", "checkpoint", 0);
  e.rows = get_int(j, "rows", "checkpoint", 0);
  e.best = get_bool(j, "best", "checkpoint", false);
  e.preference = preference_from_json(j);
  if (!e.preference.present) e.perplexity = std::exp(e.loss);
  if (const Json* samples = find_member(j, "samples"); samples && samples->is_array())
    for (const Json& s : *samples)
      e.samples.push_back({get_string(s, "prompt", "checkpoint", std::string()),
                           get_string(s, "answer", "checkpoint", std::string())});
  return e;
}

// A result of an earlier run, which nobody should take for one of this run. What somebody else put
// into the folder stays, and then the folder does; so does what a link leads to.
void remove_result(const std::filesystem::path& folder) {
  std::error_code none;
  if (std::filesystem::is_symlink(folder, none)) return;
  if (!std::filesystem::exists(folder / "adapter_config.json", none) &&
      !std::filesystem::exists(folder / "config.json", none))
    return;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string kind = entry.path().extension().string();
    if (kind == ".safetensors" || kind == ".json" || kind == ".jinja" || kind == ".model" ||
        entry.path().filename() == "merges.txt")
      files.push_back(entry.path());
  }
  for (const std::filesystem::path& file : files) std::filesystem::remove(file, none);
  std::filesystem::remove(folder, none);
}

std::string numbered_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%07lld", static_cast<long long>(step));
  return name;
}

// The update of a folder that numbered_name() names, else 0.
int64_t numbered_step(const std::string& name) {
  constexpr std::string_view kBegin = "step-";
  int64_t step = 0;
  if (name.starts_with(kBegin))
    std::from_chars(name.data() + kBegin.size(), name.data() + name.size(), step);
  return step > 0 && numbered_name(step) == name ? step : 0;
}

// The numbered results in `folder` that are of none of these updates.
void remove_numbered_but(const std::vector<int64_t>& steps, const std::filesystem::path& folder) {
  std::error_code none;
  std::vector<std::filesystem::path> others;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const int64_t step = numbered_step(entry.path().filename().string());
    if (step > 0 && std::find(steps.begin(), steps.end(), step) == steps.end())
      others.push_back(entry.path());
  }
  for (const std::filesystem::path& other : others) remove_result(other);
}

}  // namespace

void TrainRun::restore_states(const Checkpoint& c) {
  const std::string file = checkpoint_path(setup_.options.adapter_path).string();
  // States of one name mean other things to other optimizers: a sum of gradients, a mean of them.
  auto family = [](const std::string& name) { return name == "adam" ? "adamw" : name; };
  const bool same = family(get_string(c.run, "optimizer", file, setup_.options.optimizer)) ==
                    family(setup_.options.optimizer);
  for (size_t i = 0; i < step_.states().size(); ++i) {
    const OptimizerState& wanted = step_.states()[i];
    const size_t bytes = static_cast<size_t>(wanted.shape.elements()) * dtype_bytes(wanted.dtype);
    auto found = std::find_if(c.states.begin(), c.states.end(), [&](const CheckpointState& s) {
      return s.name == wanted.name && s.dtype == wanted.dtype && s.bytes.size() == bytes;
    });
    if (same && found != c.states.end()) {
      step_.set_state(i, found->bytes);
    } else if (setup_.options.force) {
      messages_.push_back(cat("--force: the checkpoint has no ", wanted.name, " of ",
                              setup_.options.optimizer, "; it starts from zero"));
    } else {
      fail(ErrorCode::kCorruptFile, file, ": has no ", wanted.name, " of ",
           setup_.options.optimizer, " with ", bytes, " bytes");
    }
  }
}

void TrainRun::resume() {
  const std::string file = checkpoint_path(setup_.options.adapter_path).string();
  std::optional<Checkpoint> c = load_checkpoint(setup_.options.adapter_path);
  if (!c) {
    // Killed before its first checkpoint.
    messages_.push_back(cat(file, ": no checkpoint yet; starting from the beginning"));
    return;
  }
  const std::vector<std::string> changed = differences(c->run, setup_.identity);
  std::string list;
  for (const std::string& each : changed) list += (list.empty() ? "" : "; ") + each;
  if (!changed.empty() && !setup_.options.force)
    fail(ErrorCode::kInvalidArgument, file, ": was made by another run: ", list,
         ". Use the same options and data, or --force to go on with the new ones");
  if (changed.empty()) {
    std::string order;
    for (const std::string& each : order_differences(c->run, setup_.identity))
      order += (order.empty() ? "" : "; ") + each;
    if (!order.empty() && !setup_.options.force)
      fail(ErrorCode::kInvalidArgument, file,
           ": was made by a build of wick, or with another --memory or --grad-checkpoint, that "
           "computes this run otherwise: ",
           order,
           ". The result would not have the bits of an undisturbed run; go on with the build and "
           "the options that began it, or with --force");
    if (!order.empty())
      messages_.push_back(
          cat("--force: going on from ", file, ", but not to the same bits: ", order));
  }
  if (static_cast<int64_t>(c->params.size()) != step_.param_count())
    fail(ErrorCode::kCorruptFile, file, ": holds ", c->params.size(), " parameters, this run has ",
         step_.param_count(),
         setup_.options.force ? "; --force cannot change what is trained" : "");
  if (!trains_the_same(c->run, setup_.identity))
    fail(ErrorCode::kInvalidArgument, file, ": holds numbers of other modules, tokens or starts (",
         list.empty() ? "--init-adapter is another" : list,
         ") than this run trains; --force cannot change that");
  if (!changed.empty()) messages_.push_back(cat("--force: going on from ", file, " with ", list));
  step_.set_params(c->params);
  restore_states(*c);
  first_update_ = c->step;
  if (keeps_best() && c->best.size() == c->params.size()) best_params_ = std::move(c->best);
  const Json& p = c->progress;
  result_.tokens = get_int(p, "tokens", file, 0);
  trained_tokens_ = get_int(p, "trained_tokens", file, 0);
  earlier_seconds_ = get_float(p, "seconds", file, 0.0);
  loss_sum_ = get_float(p, "window_loss", file, 0.0);
  loss_tokens_ = get_int(p, "window_tokens", file, 0);
  if (const Json* rewards = find_member(p, "window_rewards"); rewards && step_.loss_kind())
    step_.loss_kind()->set_window(*rewards);
  stale_evals_ = get_int(p, "stale_evals", file, 0);
  look_due_ = get_bool(p, "look_due", file, false);
  checkpoint_step_ = c->step;
  if (find_member(p, "best_valid_loss")) {
    best_valid_ = get_float(p, "best_valid_loss", file);
    best_step_ = get_int(p, "best_step", file, 0);
    lower_valid_ = get_float(p, "lower_valid_loss", file, best_valid_);
  }
  // A checkpoint of an older wick does not say which are the run's.
  const Json* numbered = find_member(p, "numbered");
  knows_numbered_ = numbered && numbered->is_array();
  if (knows_numbered_)
    for (const Json& j : *numbered)
      if (j.is_number_integer()) numbered_.push_back(j.get<int64_t>());
  if (const Json* history = find_member(p, "history"); history && history->is_array())
    for (const Json& j : *history) result_.history.push_back(step_from_json(j, updates_));
  if (const Json* evals = find_member(p, "evals"); evals && evals->is_array())
    for (const Json& j : *evals) result_.evals.push_back(eval_from_json(j));
  if (setup_.options.force && keeps_best() && best_step_ >= 0) forget_best(*c);
}

// Losses of other rows, or of another kind, say nothing about which result is the best.
void TrainRun::forget_best(const Checkpoint& c) {
  auto differs = [&](const char* name) {
    const Json *was = find_member(c.run, name), *is = find_member(setup_.identity, name);
    return was && is && *was != *is;
  };
  const ExampleSet& valid = *setup_.valid;
  const auto looked_at = static_cast<int64_t>(valid_rows(valid, setup_.options).size());
  const bool others = differs("valid_fingerprint") || differs("loss") || result_.evals.empty() ||
                      result_.evals.back().rows != looked_at ||
                      (looked_at < valid.size() && differs("seed"));
  if (!others && !best_params_.empty()) return;
  messages_.push_back(
      others ? "--force: the held-out rows are others, so the best so far is looked for anew"
             : "--force: the checkpoint has no best result, which is looked for anew");
  best_params_.clear();
  best_step_ = -1;
  lower_valid_ = std::numeric_limits<double>::infinity();
  stale_evals_ = 0;
  look_due_ = true;  // what the checkpoint has may be the best
}

void TrainRun::save_numbered(int64_t step, std::span<const float> params) {
  setup_.save_result(setup_.options.adapter_path + "/" + numbered_name(step), params);
}

void TrainRun::save(int64_t step, const TrainCallbacks& callbacks) {
  const TrainOptions& o = setup_.options;
  hold_folder();
  release_free_memory();
  Checkpoint c;
  c.step = step;
  c.params = step_.params();
  c.best = std::move(best_params_);
  for (size_t i = 0; i < step_.states().size(); ++i)
    c.states.push_back({step_.states()[i].name, step_.states()[i].dtype, step_.state(i)});
  c.run = setup_.identity;
  Json history = Json::array(), evals = Json::array();
  for (const StepReport& r : result_.history) history.push_back(to_json(r));
  for (const EvalReport& e : result_.evals) evals.push_back(to_json(e));
  c.progress = Json{{"tokens", result_.tokens},
                    {"trained_tokens", trained_tokens_},
                    {"seconds", seconds_so_far()},
                    {"window_loss", loss_sum_},
                    {"window_tokens", loss_tokens_},
                    {"stale_evals", stale_evals_},
                    {"history", history},
                    {"evals", evals}};
  if (best_step_ >= 0) {
    c.progress["best_valid_loss"] = best_valid_;
    c.progress["best_step"] = best_step_;
    if (std::isfinite(lower_valid_)) c.progress["lower_valid_loss"] = lower_valid_;
  }
  if (look_due_) c.progress["look_due"] = true;
  if (const Loss* kind = step_.loss_kind())
    if (Json rewards = kind->window(); !rewards.is_null())
      c.progress["window_rewards"] = std::move(rewards);
  if (o.save_numbered && (numbered_.empty() || numbered_.back() != step)) numbered_.push_back(step);
  if (knows_numbered_) c.progress["numbered"] = numbered_;
  save_checkpoint(o.adapter_path, c);
  checkpoint_step_ = step;
  best_params_ = std::move(c.best);
  // They are on the disk, and a result takes copies of its own.
  c.states = std::vector<CheckpointState>();
  setup_.save_result(o.adapter_path, c.params);
  if (!keeps_best()) remove_result(o.adapter_path + "/best");
  if (knows_numbered_) remove_numbered_but(numbered_, o.adapter_path);
  if (o.save_numbered) save_numbered(step, c.params);
  saved_ = true;
  if (callbacks.on_save) callbacks.on_save({step, o.adapter_path});
}

}  // namespace wick
