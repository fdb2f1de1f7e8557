// SPDX-License-Identifier: Apache-2.0
// One HTML file without scripts and without anything from elsewhere: it can be mailed, kept and
// opened years later. Every text that comes from outside passes escaped().
#include <algorithm>
#include <cmath>

#include "api/internal.h"
#include "api/report_chart.h"
#include "api/report_style.h"
#include "api/report_text.h"
#include "base/check.h"
#include "base/file.h"

namespace wick {

namespace {

using namespace report;

constexpr size_t kMaxSampleBytes = 8000;
constexpr size_t kMaxTableRows = 400;

struct Run {
  const TrainOptions& options;
  const ModelInfo& model;
  const DeviceReport& device;
  const Forecast& forecast;
  const TrainResult& result;

  bool full() const { return options.fine_tune_type == "full"; }
  bool held_out() const { return !result.evals.empty(); }
  int64_t planned() const {
    return result.history.empty() ? forecast.updates : result.history.back().steps;
  }
};

std::string model_name(const ModelInfo& model) {
  return model.path.empty() ? "the model inside wick" : model.path;
}

std::string card(const std::string& label, const std::string& value, const std::string& note) {
  return cat("<div class=\"card\"><dt>", label, "</dt><dd>", value,
             note.empty() ? "" : "<small>" + note + "</small>", "</dd></div>\n");
}

std::string arrow(double before, double after) {
  return cat(number(before, 3), "<span class=\"to\"> → </span>", number(after, 3));
}

std::string perplexity(double loss) {
  double p = std::exp(loss);
  return p >= 1000 && p < 1e9 ? count(std::llround(p)) : number(p, 3);
}

std::string percent(double share) { return number(100 * share, 3) + " %"; }

// What a held-out loss amounts to. That of preferences is not one of tokens, so it has no
// perplexity.
std::string held_out_words(const Run& run) {
  const TrainResult& r = run.result;
  if (r.evals.empty() || !r.evals.front().preference.present)
    return cat("perplexity ", perplexity(r.first_valid_loss), " → ", perplexity(r.valid_loss));
  auto kept = std::find_if(r.evals.rbegin(), r.evals.rend(),
                           [&](const EvalReport& e) { return e.loss == r.valid_loss; });
  const EvalReport& last = kept == r.evals.rend() ? r.evals.back() : *kept;
  const PreferenceReport &then = r.evals.front().preference, &now = last.preference;
  if (std::isnan(now.accuracy))
    return cat("margin of rewards ", number(then.margin, 3), " → ", number(now.margin, 3));
  return cat("accuracy ", percent(then.accuracy), " → ", percent(now.accuracy));
}

std::string heading(const Run& run) {
  const TrainResult& r = run.result;
  const TrainOptions& o = run.options;
  std::string what = run.full()
                         ? "All weights"
                         : cat("A ", o.dora ? "DoRA" : "LoRA", " adapter of rank ", o.rank, " (",
                               count(run.model.adapter_parameters), " trained numbers)");
  std::string status = r.interrupted ? cat("<p class=\"status warn\">Stopped after ",
                                           plural(r.steps, "update"), " of ", count(run.planned()),
                                           "; wick train --resume goes on from there.</p>\n")
                                     : "";
  if (r.stopped_early)
    status += cat("<p class=\"status\">Stopped early after ", plural(r.steps, "update"), " of ",
                  count(run.planned()), ": the held-out loss had stopped falling.</p>\n");
  if (!r.interrupted && r.kept_step >= 0 && r.kept_step != r.steps)
    status += cat("<p class=\"status\">The result is that of update ", count(r.kept_step),
                  ", whose held-out loss was the lowest.</p>\n");
  return cat("<header>\n<p class=\"brand\">wick ", WICK_VERSION, "</p>\n<h1>Training report</h1>\n",
             "<p class=\"lead\">", what, " of <b>", escaped(model_name(run.model)), "</b> (",
             escaped(run.model.model_type), ", ", count(run.model.parameters),
             " weights), trained on <b>", escaped(o.data), "</b>, on ",
             escaped(run.device.description.empty() ? run.device.name : run.device.description),
             ".</p>\n", status, "</header>\n");
}

std::string key_figures(const Run& run) {
  const TrainResult& r = run.result;
  std::string out = "<dl class=\"cards\">\n";
  if (run.held_out())
    out +=
        card("Loss on held-out rows", arrow(r.first_valid_loss, r.valid_loss), held_out_words(run));
  if (!r.history.empty())
    out += card("Loss in training", arrow(r.first_loss, r.final_loss), "first and last report");
  out += card("Updates", count(r.steps), plural(r.tokens, "token"));
  double rate = r.seconds > 0 ? static_cast<double>(r.tokens) / r.seconds : 0;
  out += card("Time", seconds(r.seconds),
              rate > 0 ? count(std::llround(std::min(rate, 1e15))) + " tokens/s" : "");
  std::string forecast;
  if (run.forecast.peak_bytes > 0)
    forecast = cat("forecast ", bytes(run.forecast.peak_bytes), " for the training itself");
  out += card("Peak memory", bytes(r.peak_bytes), forecast);
  return out + "</dl>\n";
}

std::vector<std::pair<double, double>> points(const std::vector<StepReport>& history,
                                              double StepReport::*field) {
  std::vector<std::pair<double, double>> out;
  for (const StepReport& s : history) out.emplace_back(static_cast<double>(s.step), s.*field);
  return out;
}

std::string small_chart(const Run& run, const char* title, double StepReport::*field) {
  std::string svg = line_chart({{title, "rate", points(run.result.history, field)}},
                               {.title = cat(title, " by update"),
                                .x_name = "updates",
                                .y_name = title,
                                .width = 300,
                                .height = 190,
                                .small = true,
                                .from_zero = true});
  return svg.empty() ? "" : cat("<figure>", svg, "</figure>\n");
}

// Rewards of chosen and rejected answers, where a run compares them.
std::string reward_chart(const Run& run) {
  ChartSeries chosen{.name = "chosen", .css = "train", .points = {}},
      rejected{.name = "rejected", .css = "held", .points = {}};
  for (const StepReport& s : run.result.history) {
    if (!s.preference.present) continue;
    for (auto& [series, reward] :
         {std::pair(&chosen, s.preference.chosen), std::pair(&rejected, s.preference.rejected)})
      if (!std::isnan(reward)) series->points.emplace_back(static_cast<double>(s.step), reward);
  }
  if (chosen.points.empty() && rejected.points.empty()) return "";
  const PreferenceReport& last = run.result.history.back().preference;
  const std::string svg =
      line_chart({chosen, rejected}, {.title = "Rewards of chosen and rejected answers by update",
                                      .x_name = "updates",
                                      .y_name = "reward",
                                      .height = 260});
  return cat("<figure>", svg, "</figure>\n",
             std::isnan(last.accuracy)
                 ? ""
                 : cat("<p class=\"note\">At the end the chosen answer has the higher reward in ",
                       fixed(100 * last.accuracy, 0), " % of the pairs.</p>\n"));
}

// The numbers behind the charts, for eyes that prefer them and for programs that cannot see.
std::string history_table(const Run& run) {
  const std::vector<StepReport>& all = run.result.history;
  if (all.empty() && !run.held_out()) return "";
  size_t every = (all.size() + kMaxTableRows - 1) / std::max<size_t>(1, kMaxTableRows);
  every = std::max<size_t>(every, 1);
  std::string out = "<details><summary>The numbers</summary>\n<div class=\"scroll\">";
  if (!all.empty()) {
    out += "<table class=\"numbers\"><caption>Training";
    if (every > 1) out += cat(", one report of every ", every);
    out +=
        "</caption><thead><tr><th scope=\"col\">update</th><th scope=\"col\">loss</th>"
        "<th scope=\"col\">learning rate</th><th scope=\"col\">gradient norm</th>"
        "<th scope=\"col\">tokens</th><th scope=\"col\">tokens/s</th></tr></thead><tbody>\n";
    for (size_t i = 0; i < all.size(); ++i) {
      if ((all.size() - 1 - i) % every != 0) continue;
      const StepReport& s = all[i];
      out += cat("<tr><td>", count(s.step), "</td><td>", fixed(s.loss, 4), "</td><td>",
                 number(s.learning_rate), "</td><td>", number(s.grad_norm, 3), "</td><td>",
                 count(s.tokens), "</td><td>", fixed(s.tokens_per_second, 0), "</td></tr>\n");
    }
    out += "</tbody></table>\n";
  }
  if (run.held_out()) {
    const std::vector<EvalReport>& evals = run.result.evals;
    const bool compared = !evals.empty() && evals.front().preference.present;
    const bool pairs = compared && !std::isnan(evals.front().preference.accuracy);
    out +=
        cat("<table class=\"numbers\"><caption>Held-out rows</caption><thead><tr>"
            "<th scope=\"col\">update</th><th scope=\"col\">loss</th>"
            "<th scope=\"col\">",
            pairs      ? "accuracy"
            : compared ? "margin of rewards"
                       : "perplexity",
            "</th></tr></thead><tbody>\n");
    for (const EvalReport& e : evals)
      out += cat("<tr><td>", count(e.step), "</td><td>", fixed(e.loss, 4), "</td><td>",
                 pairs      ? percent(e.preference.accuracy)
                 : compared ? number(e.preference.margin, 3)
                            : number(e.perplexity),
                 "</td></tr>\n");
    out += "</tbody></table>\n";
  }
  return out + "</div></details>\n";
}

std::string curves(const Run& run) {
  ChartSeries train{.name = "training", .css = "train", .points = {}},
      held{.name = "held out", .css = "held", .points = {}, .marks = true};
  train.points = points(run.result.history, &StepReport::loss);
  for (const EvalReport& e : run.result.evals)
    held.points.emplace_back(static_cast<double>(e.step), e.loss);
  std::string title = "Loss by update.";
  if (!train.points.empty())
    title += cat(" In training from ", fixed(run.result.first_loss, 4), " to ",
                 fixed(run.result.final_loss, 4), ".");
  if (run.held_out())
    title += cat(" Held out from ", fixed(run.result.first_valid_loss, 4), " to ",
                 fixed(run.result.valid_loss, 4), ".");
  std::string svg =
      line_chart({train, held},
                 {.title = title,
                  .x_name = "updates",
                  .y_name = run.options.loss == "sft" ? "loss (nats per trained token)" : "loss",
                  .may_log = true});
  std::string out = "<section>\n<h2>Loss</h2>\n";
  out += svg.empty() ? "<p>This run reported no loss to draw.</p>\n"
                     : cat("<figure>", svg, "</figure>\n");
  auto odd = std::count_if(run.result.history.begin(), run.result.history.end(),
                           [](const StepReport& s) { return !std::isfinite(s.loss); });
  if (odd > 0)
    out += cat("<p class=\"status warn\">", plural(odd, "report"),
               " had a loss that is no finite number; the curve leaves them out.</p>\n");
  if (!run.held_out())
    out +=
        "<p class=\"note\">No held-out loss: the data has no valid.jsonl. Training loss alone "
        "does not show whether the model generalises.</p>\n";
  out += reward_chart(run);
  if (!run.result.history.empty())
    out += cat("<div class=\"small-charts\">\n",
               small_chart(run, "learning rate", &StepReport::learning_rate),
               small_chart(run, "tokens per second", &StepReport::tokens_per_second),
               small_chart(run, "gradient norm", &StepReport::grad_norm), "</div>\n");
  return out + history_table(run) + "</section>\n";
}

// A text of the model or the data; long ones scroll, with the keyboard too.
std::string quoted(const char* label, const std::string& text, const char* css,
                   const std::string& badge = {}) {
  bool scrolls = text.size() > 1000;
  std::string shown = escaped(shortened(trimmed(text), kMaxSampleBytes));
  if (shown.empty()) shown = "<i>(empty)</i>";
  return cat("<div class=\"turn ", css, "\"><h4>", label, badge, "</h4><pre",
             scrolls ? cat(" tabindex=\"0\" role=\"region\" aria-label=\"", label, "\"") : "", ">",
             shown, "</pre></div>\n");
}

std::string samples(const Run& run) {
  if (run.result.samples.empty()) return "";
  std::string out = "<section>\n<h2>Samples before and after</h2>\n";
  for (const TrainSample& s : run.result.samples) {
    std::string wanted = trimmed(s.expected);
    auto badge = [&](const std::string& text) -> std::string {
      if (wanted.empty()) return "";
      return trimmed(text) == wanted ? " <span class=\"badge good\">exact</span>"
                                     : " <span class=\"badge\">different</span>";
    };
    out += "<article class=\"sample\">\n" + quoted("Prompt", s.prompt, "prompt");
    if (!wanted.empty()) out += quoted("Wanted", s.expected, "wanted");
    out += cat("<div class=\"pair\">\n", quoted("Before", s.before, "before", badge(s.before)),
               quoted("After", s.after, "after", badge(s.after)), "</div>\n</article>\n");
  }
  return out + "</section>\n";
}

// What the model said to the same prompts at each look at the held-out rows.
std::string eval_samples(const Run& run) {
  const std::vector<EvalReport>& evals = run.result.evals;
  size_t prompts = 0;
  for (const EvalReport& e : evals) prompts = std::max(prompts, e.samples.size());
  if (prompts == 0) return "";
  std::string out = "<section>\n<h2>The same prompts at each look</h2>\n";
  for (size_t i = 0; i < prompts; ++i) {
    std::string prompt, rows;
    for (const EvalReport& e : evals) {
      if (i >= e.samples.size()) continue;
      prompt = e.samples[i].prompt;
      const std::string label = cat("Update ", count(e.step));
      rows += quoted(label.c_str(), e.samples[i].answer, "after",
                     e.best ? " <span class=\"badge good\">lowest loss so far</span>" : "");
    }
    out += cat("<article class=\"sample\">\n", quoted("Prompt", prompt, "prompt"),
               i == 0 ? "<details open>" : "<details>", "<summary>Answers</summary>\n", rows,
               "</details>\n</article>\n");
  }
  return out + "</section>\n";
}

std::string memory(const Run& run) {
  const Forecast& f = run.forecast;
  if (f.peak_bytes <= 0) return "";
  struct Part {
    const char* name;
    const char* css;
    int64_t bytes;
  };
  const Part parts[] = {{"Weights", "m1", f.weights},     {"Trained numbers", "m2", f.params},
                        {"Gradients", "m3", f.gradients}, {"Optimizer", "m4", f.moments},
                        {"Batches", "m5", f.feeds},       {"Activations", "m6", f.arena}};
  std::string bar, rows;
  double at = 0;
  for (const Part& p : parts) {
    double share = 100.0 * static_cast<double>(p.bytes) / static_cast<double>(f.peak_bytes);
    bar += cat("<rect class=\"", p.css, "\" x=\"", fixed(at, 2), "%\" y=\"0\" width=\"",
               fixed(share, 2), "%\" height=\"20\"/>");
    at += share;
    rows += cat("<tr><th scope=\"row\"><span class=\"key ", p.css, "\"></span>", p.name,
                "</th><td>", bytes(p.bytes), "</td><td>", count(p.bytes), "</td><td>",
                fixed(share, 1), " %</td></tr>\n");
  }
  return cat(
      "<section>\n<h2>Memory, as forecast</h2>\n",
      "<p class=\"note\">Known to the byte before a weight was read. The process takes some "
      "more: its code, the tokenizer, the data set.</p>\n",
      "<svg class=\"bar\" role=\"img\" aria-label=\"Shares of the forecast; the table has the "
      "numbers\" xmlns=\"http://www.w3.org/2000/svg\">",
      bar, "</svg>\n<div class=\"scroll\"><table class=\"numbers memory\"><thead><tr>",
      "<th scope=\"col\">kind</th><th scope=\"col\">size</th><th scope=\"col\">bytes</th>",
      "<th scope=\"col\">share</th></tr></thead><tbody>\n", rows, "</tbody><tfoot><tr>",
      "<th scope=\"row\">Together</th><td>", bytes(f.peak_bytes), "</td><td>", count(f.peak_bytes),
      "</td><td></td></tr></tfoot></table></div>\n</section>\n");
}

class Settings {
 public:
  void group(const char* name) {
    rows_ += cat("<tr><th scope=\"rowgroup\" colspan=\"2\" class=\"group\">", name, "</th></tr>\n");
  }
  void add(const char* name, const std::string& value) {
    rows_ += cat("<tr><th scope=\"row\"><code>", name, "</code></th><td>",
                 value.empty() ? "<i>none</i>" : escaped(value), "</td></tr>\n");
  }
  void add(const char* name, const char* value) { add(name, std::string(value)); }
  void add(const char* name, int64_t value) { add(name, std::to_string(value)); }
  void add(const char* name, double value) { add(name, number(value, 6)); }
  void add(const char* name, bool value) { add(name, value ? "yes" : "no"); }
  const std::string& rows() const { return rows_; }

 private:
  std::string rows_;
};

std::string settings(const Run& run) {
  const TrainOptions& o = run.options;
  Settings s;
  s.group("What is trained");
  s.add("fine_tune_type", o.fine_tune_type);
  if (!run.full()) {
    std::string targets;
    for (const std::string& t : o.targets) targets += (targets.empty() ? "" : ", ") + t;
    s.add("rank", o.rank);
    s.add("alpha", o.alpha);
    s.add("lora_dropout", o.dropout);
    s.add("targets", targets);
    s.add("init_adapter", o.init_adapter);
  }
  s.add("num_layers", o.num_layers < 0 ? "all" : std::to_string(o.num_layers));
  s.group("The run");
  s.add("batch_size", o.batch_size);
  s.add("grad_accumulation_steps", o.grad_accumulation_steps);
  if (o.iters > 0)
    s.add("iters", o.iters);
  else
    s.add("epochs", o.epochs);
  s.add("seed", std::to_string(o.seed));
  s.add("shuffle", o.shuffle);
  s.add("packing", o.packing);
  s.add("memory", o.memory_bytes > 0 ? bytes(o.memory_bytes) : "as needed");
  s.add("recompute", run.forecast.recompute);
  s.add("tokens of a pack", run.forecast.tokens_per_step);
  if (run.forecast.packed_fill > 0) {
    auto share = [](double x) { return cat(std::lround(100 * x), " %"); };
    s.add("token slots used", cat(share(run.forecast.packed_fill), "; padded to the longest row ",
                                  share(run.forecast.padded_fill), ", sorted by length ",
                                  share(run.forecast.sorted_fill)));
  }
  s.group("The optimizer");
  s.add("optimizer", o.optimizer);
  s.add("learning_rate", o.learning_rate);
  s.add("lr_schedule", o.lr_schedule);
  s.add("warmup", o.warmup < 0 ? "3 % of the run" : number(o.warmup) + " updates");
  if (o.weight_decay >= 0) s.add("weight_decay", o.weight_decay);
  s.add("grad_clip", o.grad_clip == 0 ? "off" : number(o.grad_clip));
  if (o.beta1 >= 0)
    s.add("beta1, beta2, eps",
          cat(number(o.beta1, 6), ", ", number(o.beta2, 6), ", ", number(o.eps)));
  if (!o.bias_correction) s.add("bias_correction", false);
  if (o.momentum >= 0) s.add("momentum", o.momentum);
  if (o.early_stop > 0) s.add("early_stop", o.early_stop);
  if (o.keep_best || o.early_stop > 0) s.add("keep_best", true);
  if (o.loss != "sft") s.add("loss", o.loss);
  s.group("The data");
  s.add("data", o.data);
  s.add("mask_prompt", o.dataset.mask_prompt);
  s.add("max_seq_length", o.dataset.max_seq_length);
  s.add("system_prompt", shortened(o.dataset.system_prompt, kMaxSampleBytes));
  s.add("val_batches", o.val_batches < 0 ? "all" : std::to_string(o.val_batches));
  s.group("The model and the machine");
  s.add("model", model_name(run.model));
  s.add("shape", cat(run.model.model_type, ", ", run.model.layers, " layers, hidden ",
                     run.model.hidden, ", vocabulary ", count(run.model.vocab)));
  s.add("weights", cat(count(run.model.parameters), " in ", run.model.weight_dtype));
  s.add("adapter_path", o.adapter_path);
  s.add("device", cat(run.device.name, run.device.isa.empty() ? "" : ", " + run.device.isa, ", ",
                      plural(run.device.threads, "thread")));
  s.add("hardware", run.device.description);
  return cat(
      "<section>\n<h2>Settings</h2>\n<div class=\"scroll\"><table class=\"settings\"><tbody>\n",
      s.rows(), "</tbody></table></div>\n</section>\n");
}

}  // namespace

void write_report(const std::filesystem::path& path, const TrainOptions& options,
                  const ModelInfo& model, const DeviceReport& device, const Forecast& forecast,
                  const TrainResult& result) {
  Run run{options, model, device, forecast, result};
  write_file(path,
             cat("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
                 "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Training report: ",
                 escaped(model_name(model)), "</title>\n<style>\n", report::kStyle,
                 "</style>\n</head>\n<body>\n<main>\n", heading(run), key_figures(run), curves(run),
                 samples(run), eval_samples(run), memory(run), settings(run),
                 "</main>\n</body>\n</html>\n"));
}

}  // namespace wick
