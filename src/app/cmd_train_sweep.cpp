// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "api/watch.h"
#include "app/format.h"
#include "app/signals.h"
#include "app/train_sweep.h"
#include "app/verbs.h"
#include "base/check.h"

namespace wick {

namespace {

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

void show_ranking(const SweepResult& result, Output& out) {
  size_t width = 7;
  for (const SweepEntry& e : result.entries) width = std::max(width, e.name.size());
  out.say();
  // Losses of different rows do not compare, and a table must not look as if they did.
  const bool apart = result.row_sets > 1;
  out.result("rank  " + padded("adapter", width) + "  held-out loss  last loss  updates" +
             (apart ? "  loss of" : ""));
  for (const SweepEntry& e : result.entries) {
    std::string line =
        padded(e.rank > 0 ? std::to_string(e.rank) : "-", 6) + padded(e.name, width) + "  ";
    if (!e.error.empty())
      line += e.error;
    else
      line += padded(e.result.evals.empty() ? "-" : fixed(e.result.valid_loss, 4), 15) +
              padded(fixed(e.result.final_loss, 4), 11) +
              padded(std::to_string(e.result.steps), apart ? 9 : 0);
    if (apart && e.rows > 0) line += cat("rows ", e.rows, ", ", visible(e.rows_file));
    out.result(line);
    Json event = {{"event", "ranked"},
                  {"rank", e.rank > 0 ? Json(e.rank) : Json()},
                  {"name", e.name},
                  {"adapter_path", e.result.adapter_path},
                  {"final_loss", e.result.final_loss},
                  {"steps", e.result.steps}};
    if (e.rank > 0) event.update({{"rows", e.rows}, {"rows_file", e.rows_file}});
    if (!e.result.evals.empty()) event["valid_loss"] = e.result.valid_loss;
    if (!e.error.empty()) event["error"] = e.error;
    out.event(event);
  }
}

}  // namespace

int run_sweep(const std::vector<SweepAdapter>& adapters, const std::string& folder, Model& model,
              Output& out, const std::string& resume_command) {
  Sweep sweep(model, adapters);
  StopSignal stop;
  stop.heed_closed_pipe();
  TrainView view(out);
  auto named = [](const std::string& name, Json event) {
    event["adapter"] = name;
    return event;
  };
  SweepCallbacks callbacks;
  callbacks.on_forecast = [&](const Forecast& forecast) { view.forecast(forecast); };
  callbacks.on_step = [&](const std::string& name, const StepReport& r) {
    out.event(named(name, step_event(r)));
    out.say(cat(name, "  step ", r.step, "/", r.steps, "  loss ", fixed(r.loss, 4), "  lr ",
                general(r.learning_rate, 3), "  ", format_seconds(r.seconds_left), " left"));
  };
  callbacks.on_eval = [&](const std::string& name, const EvalReport& r) {
    out.event(named(name, eval_event(r)));
    out.say(cat(name, "  step ", r.step, "  held-out loss ", fixed(r.loss, 4)));
  };
  callbacks.on_save = [&](const std::string& name, const SaveReport& r) {
    out.event(named(name, save_event(r)));
  };
  callbacks.on_message = [&](const std::string& line) { view.message(line); };
  callbacks.should_stop = callbacks.should_give_up = [&] { return stop.asked(); };
  const SweepResult result = sweep.run(folder, callbacks);
  if (result.interrupted && result.entries.empty()) {
    out.event({{"event", "done"}, {"interrupted", true}});
    out.result("stopped before the first update; nothing was saved or changed");
    return kInterrupted;
  }
  show_ranking(result, out);
  out.event({{"event", "done"},
             {"interrupted", result.interrupted},
             {"seconds", result.seconds},
             {"peak_bytes", result.peak_bytes},
             {"summary_path", result.summary_path}});
  out.say("summary " + result.summary_path);
  // Those that failed are last: without one that did not there is no result.
  if (!result.entries.empty() && !result.entries.front().error.empty())
    fail(ErrorCode::kInvalidArgument,
         "no adapter of the sweep came to its end; the first: ", result.entries.front().error);
  if (!result.interrupted) return kDone;
  out.result("stopped and saved; go on with");
  out.result("  " + resume_command);
  return kInterrupted;
}

}  // namespace wick
