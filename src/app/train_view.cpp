// SPDX-License-Identifier: Apache-2.0
#include "app/train_view.h"

#include <algorithm>
#include <cmath>

#include "api/watch.h"
#include "app/format.h"
#include "app/plot.h"
#include "base/check.h"

namespace wick {

namespace {

constexpr size_t kSamplesShown = 3;

std::string shortened(const std::string& text, size_t columns) {
  const std::string shown = visible(text);
  const std::string_view part = fitting(shown, columns);
  return part.size() == shown.size() ? shown : cat(part, sign("…", "..."));
}

std::string padded_right(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string preference_words(const PreferenceReport& p) {
  if (!p.present) return {};
  return cat(std::isnan(p.accuracy) ? "" : "  accuracy " + percent(p.accuracy, 0),
             std::isnan(p.margin) ? "" : "  margin " + fixed(p.margin, 4));
}

std::string step_line(const StepReport& r, bool aligned, size_t room) {
  std::string total = std::to_string(r.steps), step = std::to_string(r.step);
  if (aligned && step.size() < total.size()) step.insert(0, total.size() - step.size(), ' ');
  struct Part {
    std::string text;
    int order;  // in which parts are left out of a line that is too long, from 1; 0: never
  };
  std::vector<Part> parts = {
      {cat("step ", step, "/", total, "  loss ", fixed(r.loss, 4)), 0},
      {preference_words(r.preference), 0},
      {"  lr " + general(r.learning_rate, 3), 4},
      {cat("  ", format_count(std::llround(r.tokens_per_second)), " tokens/s"), 5},
      {r.utilisation > 0 ? cat("  ", percent(r.utilisation, 0), " of peak") : "", 2},
      {"  " + format_bytes(r.peak_bytes), 3},
      {r.forecast_bytes > 0 ? " of " + format_bytes(r.forecast_bytes) : "", 1},
      {cat("  ", format_seconds(r.seconds_left), " left"), 0}};
  auto line = [&](int from) {
    std::string text;
    for (const Part& part : parts)
      if (part.order == 0 || part.order >= from) text += part.text;
    return text;
  };
  for (int from = 1; from <= 5; ++from)
    if (std::string text = line(from); columns_of(text) <= room) return text;
  return line(6);
}

// "12 s (tried)", "12 s (tried, 10 s to 15 s)", "12 s (estimated, 9 s to 16 s)". A range that is
// narrower than the forecast is sure says nothing.
template <typename F>
std::string measured(const Forecast& f, double value, double low, double high, const F& format) {
  constexpr double kSure = 0.1;
  std::string how = f.tried ? "tried" : "estimated";
  if (high - low > kSure * value) how += cat(", ", format(low), " to ", format(high));
  return cat("about ", format(value), " (", how, ")");
}

}  // namespace

Json forecast_json(const Forecast& f) {
  return {{"event", "forecast"},
          {"peak_bytes", f.peak_bytes},
          {"tried", f.tried},
          {"step_ms", f.step_ms},
          {"step_ms_low", f.step_ms_low},
          {"step_ms_high", f.step_ms_high},
          {"eval_ms", f.eval_ms},
          {"answer_ms", f.answer_ms},
          {"save_ms", f.save_ms},
          {"cold_ms", f.cold_ms},
          {"prepare_ms", f.prepare_ms},
          {"weights", f.weights},
          {"params", f.params},
          {"gradients", f.gradients},
          {"moments", f.moments},
          {"feeds", f.feeds},
          {"arena", f.arena},
          {"activations", f.activations},
          {"head", f.head},
          {"workspace", f.workspace},
          {"process_bytes", f.process_bytes},
          {"tokens_per_step", f.tokens_per_step},
          {"targets_per_step", f.targets_per_step},
          {"recompute", f.recompute},
          {"recompute_blocks", f.recompute_blocks},
          {"blocks", f.blocks},
          {"choice", f.choice},
          {"free_bytes", f.free_bytes},
          {"time_factor", f.time_factor},
          {"prefix_blocks", f.prefix_blocks},
          {"prefix_bytes", f.prefix_bytes},
          {"prefix_ms", f.prefix_ms},
          {"gflop", f.gflop},
          {"updates", f.updates},
          {"assumed_rows", f.assumed_rows},
          {"total_seconds", f.total_seconds},
          {"total_seconds_low", f.total_seconds_low},
          {"total_seconds_high", f.total_seconds_high},
          {"disk_bytes", f.disk_bytes},
          {"disk_peak_bytes", f.disk_peak_bytes},
          {"packed_fill", f.packed_fill},
          {"padded_fill", f.padded_fill},
          {"sorted_fill", f.sorted_fill}};
}

std::string packing_text(const Forecast& f) {
  return cat(percent(f.packed_fill), "; padded to the longest row ", percent(f.padded_fill),
             ", sorted by length ", percent(f.sorted_fill));
}

std::string forecast_table(const Forecast& f) {
  std::string text;
  auto row = [&](const char* name, int64_t bytes, const std::string& note = {}) {
    std::string count = format_count(bytes) + " B";
    count.insert(0, 20 - std::min<size_t>(20, count.size()), ' ');
    std::string human = format_bytes(bytes);
    human.insert(0, 10 - std::min<size_t>(10, human.size()), ' ');
    std::string line = "  " + padded_right(name, 18) + count + human;
    text += line + (note.empty() ? "" : "   " + note) + "\n";
  };
  row("weights", f.weights);
  row("trained numbers", f.params);
  row("gradients", f.gradients);
  row("optimizer", f.moments);
  row("inputs", f.feeds);
  row("activations", f.activations,
      !f.recompute ? ""
      : f.recompute_blocks == f.blocks
          ? "recomputed in the backward pass"
          : cat("recomputed in ", f.recompute_blocks, " of ", f.blocks, " blocks"));
  row("head", f.head);
  row("workspace", f.workspace);
  if (f.prefix_blocks > 0 && !f.prefix_on_disk)
    row("kept rows", f.prefix_bytes, cat("outputs of ", plural(f.prefix_blocks, "frozen block")));
  row("peak memory", f.peak_bytes);
  row("process besides", f.process_bytes, "code, tokenizer, data");
  auto say = [&](const char* name, const std::string& what) {
    text += "  " + padded_right(name, 18) + what + "\n";
  };
  std::string update =
      cat(format_count(f.tokens_per_step), " tokens and ", general(f.gflop, 3), " GFLOP per pack");
  if (f.step_ms > 0)
    update = cat(measured(f, f.step_ms, f.step_ms_low, f.step_ms_high, format_ms), ", ", update);
  say("one update", update);
  if (!f.choice.empty()) {
    const double more = 100 * (f.time_factor - 1);
    say("to fit", cat(f.choice, ": ", more < 0 ? "-" : "+", fixed(std::abs(more), 0),
                      " % time (without --memory ", format_bytes(f.free_bytes), ")"));
  }
  if (f.assumed_rows)
    say("assumed", "no --data: rows of --max-seq-length tokens, all of them trained");
  else
    say("the run",
        plural(f.updates, "update") +
            (f.total_seconds > 0 ? ", " + measured(f, f.total_seconds, f.total_seconds_low,
                                                   f.total_seconds_high, format_seconds)
                                 : std::string()));
  if (f.prepare_ms > 0)
    say("the reference", cat("reads all rows first, about ", format_seconds(1e-3 * f.prepare_ms)));
  if (f.prefix_blocks > 0 && f.prefix_ms > 0)
    say("first epoch", cat("about ", format_ms(f.prefix_ms), " more for each update: the ",
                           plural(f.prefix_blocks, "frozen block"), ", whose outputs are kept"));
  if (f.packed_fill > 0 && !f.assumed_rows) say("token slots used", packing_text(f));
  say("on disk",
      cat(format_bytes(f.disk_bytes), f.disk_peak_bytes > f.disk_bytes
                                          ? ", while it is saved " + format_bytes(f.disk_peak_bytes)
                                          : ""));
  return text;
}

void TrainView::forecast(const Forecast& forecast) {
  out_.event(forecast_json(forecast));
  std::string table = forecast_table(forecast);
  table.pop_back();
  out_.say("forecast");
  out_.say(table);
  out_.say();
}

void TrainView::progress(const StepReport& report) {
  out_.live(step_line(report, false, Output::live_columns()));
}

void TrainView::step(const StepReport& r) {
  out_.event(step_event(r));
  if (out_.live())
    progress(r);
  else
    out_.say(step_line(r, true, std::string::npos));
}

void TrainView::eval(const EvalReport& r) {
  out_.event(eval_event(r));
  std::string change;
  if (last_eval_ > 0)
    change = r.best ? ", the best so far" : r.loss > last_eval_ ? ", higher than before" : "";
  const std::string meaning = r.preference.present ? preference_words(r.preference)
                                                   : cat(", perplexity ", general(r.perplexity, 5));
  out_.say(cat("step ", r.step, "  held-out loss ", fixed(r.loss, 4), meaning, change));
  last_eval_ = r.loss;
}

void TrainView::saved(const SaveReport& r) {
  out_.event(save_event(r));
  if (!out_.live()) out_.say(cat("step ", r.step, "  saved in ", r.path));
}

// A line may hold names and texts from files.
void TrainView::message(const std::string& line) { out_.say(visible(line, true)); }

void TrainView::finish(const TrainResult& r) {
  out_.end_live();
  auto held_out = [&](double loss) { return r.best_step < 0 ? Json() : Json(loss); };
  out_.event({{"event", "done"},
              {"steps", r.steps},
              {"interrupted", r.interrupted},
              {"stopped_early", r.stopped_early},
              {"kept_step", r.kept_step},
              {"best_step", r.best_step},
              {"best_valid_loss", held_out(r.best_valid_loss)},
              {"first_loss", r.first_loss},
              {"final_loss", r.final_loss},
              {"first_valid_loss", held_out(r.first_valid_loss)},
              {"valid_loss", held_out(r.valid_loss)},
              {"tokens", r.tokens},
              {"seconds", r.seconds},
              {"peak_bytes", r.peak_bytes},
              {"adapter_path", r.adapter_path},
              {"report_path", r.report_path}});
  if (out_.quiet()) return;
  if (r.history.size() + r.evals.size() >= 3) {
    Curve train{.points = {}, .name = "loss in training"}, held{.points = {}, .name = "held out"};
    for (const auto& step : r.history)
      train.points.emplace_back(static_cast<double>(step.step), step.loss);
    for (const auto& eval : r.evals)
      held.points.emplace_back(static_cast<double>(eval.step), eval.loss);
    PlotStyle style{.columns = std::min(terminal_columns() - 2, 76),
                    .rows = 12,
                    .color = uses_color("auto", out_.people()),
                    .utf8 = uses_utf8()};
    std::string picture = plot_curves(train, held, "updates", style);
    if (!picture.empty()) {
      picture.pop_back();
      out_.say();
      out_.say(picture);
    }
  }
  for (size_t i = 0; i < std::min(r.samples.size(), kSamplesShown); ++i) {
    const TrainSample& sample = r.samples[i];
    size_t room = static_cast<size_t>(std::clamp(terminal_columns() - 12, 40, 100));
    out_.say();
    out_.say("  prompt  " + shortened(sample.prompt, room));
    out_.say("  before  " + shortened(sample.before, room));
    out_.say("  after   " + shortened(sample.after, room));
    if (!sample.expected.empty()) out_.say("  wanted  " + shortened(sample.expected, room));
  }
  out_.say();
  const char* to = sign(" → ", " -> ");
  std::string line =
      cat(plural(r.steps, "update"), " and ", plural(r.tokens, "token"), " in ",
          format_seconds(r.seconds), "; loss ", fixed(r.first_loss, 4), to, fixed(r.final_loss, 4));
  if (r.first_valid_loss > 0 || r.valid_loss > 0)
    line += cat(", held out ", fixed(r.first_valid_loss, 4), to, fixed(r.valid_loss, 4));
  out_.say(line + "; peak memory " + format_bytes(r.peak_bytes));
}

}  // namespace wick
