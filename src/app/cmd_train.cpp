// SPDX-License-Identifier: Apache-2.0
#include "app/finite.h"
#include "app/format.h"
#include "app/signals.h"
#include "app/train_flags.h"
#include "app/train_sweep.h"
#include "app/train_view.h"
#include "app/verbs.h"
#include "base/check.h"
#include "base/path_status.h"

namespace wick {

namespace {

struct Flags {
  TrainFlags train;
  OutputFlags output;
};

// The command of this run, to go on with it.
std::string resume_command(const Args& args) {
  std::string line = "wick train";
  for (const auto& word : args.words())
    if (word != "--resume") line += " " + shell_quote(word);
  return line + " --resume";
}

// "--model M" where one was given, with a blank before it.
std::string model_words(const TrainFlags& flags) {
  return flags.model.model.empty() ? "" : " --model " + shell_quote(flags.model.model);
}

void test_rows(Model& model, const TrainFlags& flags, const TrainOptions& options, Output& out) {
  Dataset data = Dataset::load(model, options.data_sources, "test", options.dataset);
  EvalOptions eval;
  eval.exact_match = false;
  // More batches than rows are all of them, also where the product would not fit.
  if (flags.test_batches >= 0 && flags.test_batches < data.size())
    eval.max_rows = flags.test_batches * options.batch_size;
  EvalResult result = evaluate(model, data, eval);
  out.event({{"event", "test"},
             {"loss", result.loss},
             {"perplexity", result.perplexity},
             {"rows", result.rows},
             {"tokens", result.tokens}});
  out.result(cat("test    loss ", fixed(result.loss, 4), ", perplexity ",
                 general(result.perplexity, 5), " on ", plural(result.rows, "row")));
  expect_finite(result, data.file());
}

// mlx-lm's --test without --train: what is in the folder, an adapter or a whole model, stays.
int test_only(const TrainFlags& flags, const TrainOptions& options, Engine& engine, Output& out) {
  ModelOptions load = flags.model_options();
  if (!options.adapter_path.empty() && !path_exists(options.adapter_path))
    fail(ErrorCode::kNotFound, "--adapter-path ", options.adapter_path,
         ": no such folder, and --test alone trains nothing; give --train as well, or '' as the "
         "path for the model alone");
  if (options.fine_tune_type == "full" && !options.adapter_path.empty())
    load.model = options.adapter_path;
  else
    load.adapter_path = options.adapter_path;
  Model model = Model::load(engine, load);
  out.say("model   " + describe_model(model.info()));
  warn_person(model.info().adapter_note, out.quiet());
  out.say("nothing is trained: --test without --train");
  test_rows(model, flags, options, out);
  return kDone;
}

int run(const Args& args, const Flags& flags) {
  Output out(flags.output.json, flags.output.quiet);
  const bool trains = args.given("train") ? flags.train.trains : !flags.train.test;
  if (!trains && !flags.train.test)
    throw UsageError("--no-train (train: false) and no --test: there is nothing to do");
  if (flags.train.test && !(flags.train.sweep.empty() && flags.train.sweep_data.empty()))
    throw UsageError(
        "--test evaluates one adapter, and a sweep makes several; leave it out, and use wick eval "
        "--adapter-path on their folders");
  TrainOptions options = flags.train.checked(args);
  if (flags.train.test && !Dataset::has_split(options.data_sources, "test"))
    fail(ErrorCode::kNotFound, "--test: ", options.data, " has no test.jsonl");
  Engine engine(flags.train.device.options());
  if (!trains) return test_only(flags.train, options, engine, out);
  const bool sweeps = !flags.train.sweep.empty() || !flags.train.sweep_data.empty();
  std::vector<SweepAdapter> adapters;
  if (sweeps) adapters = flags.train.sweep_adapters(args, options);
  Model model = Model::load(engine, flags.train.model_options());
  out.say("model   " + describe_model(model.info()));
  if (sweeps) return run_sweep(adapters, options.adapter_path, model, out, resume_command(args));
  Trainer trainer(model, options);

  StopSignal stop;
  stop.heed_closed_pipe();
  TrainView view(out);
  TrainResult result = trainer.run({
      .on_forecast = [&](const Forecast& forecast) { view.forecast(forecast); },
      .on_step = [&](const StepReport& report) { view.step(report); },
      .on_progress = [&](const StepReport& report) { view.progress(report); },
      .on_eval = [&](const EvalReport& report) { view.eval(report); },
      .on_save = [&](const SaveReport& report) { view.saved(report); },
      .on_message = [&](const std::string& line) { view.message(line); },
      .should_stop = [&] { return stop.asked(); },
      .should_give_up = [&] { return stop.asked(); },
  });
  if (result.interrupted && result.adapter_path.empty()) {
    out.event({{"event", "done"}, {"steps", 0}, {"interrupted", true}});
    out.result("stopped before the first update; nothing was saved or changed");
    return kInterrupted;
  }
  view.finish(result);

  bool full = options.fine_tune_type == "full";
  out.say(cat(full ? "model   " : "adapter ", result.adapter_path));
  if (!result.report_path.empty()) out.say("report  " + result.report_path);
  if (result.interrupted) {
    out.result("stopped and saved after update " + std::to_string(result.steps) + "; go on with");
    out.result("  " + resume_command(args));
    return kInterrupted;
  }
  if (flags.train.test) test_rows(model, flags.train, options, out);
  std::string prompt =
      options.sample_prompts.empty() ? "your question" : options.sample_prompts.front();
  std::string path = shell_quote(result.adapter_path);
  out.say();
  out.say("try it");
  out.say(cat("  wick generate",
              full ? " --model " + path : model_words(flags.train) + " --adapter-path " + path,
              " --prompt ", shell_quote(prompt)));
  return kDone;
}

}  // namespace

std::function<int()> declare_train(Args& args) {
  auto flags = std::make_shared<Flags>();
  args.summary = "fine-tune a model on your data";
  args.details =
      "Reads train.jsonl (and valid.jsonl, held out) from --data, shows what the run will take, "
      "trains an adapter, and writes it with report.html to --adapter-path in the format of PEFT. "
      "Ctrl-C saves and says how to go on.";
  args.json =
      "One object per event. forecast: peak_bytes, tried, step_ms (between step_ms_low and "
      "step_ms_high while it was tried), eval_ms (of it answer_ms), save_ms, cold_ms, "
      "prepare_ms, weights, params, gradients, moments, feeds, arena (of it activations, head, "
      "workspace), process_bytes, tokens_per_step, targets_per_step, recompute, "
      "recompute_blocks, blocks, choice, free_bytes, time_factor, gflop, updates, assumed_rows, "
      "total_seconds, total_seconds_low, total_seconds_high, disk_bytes, disk_peak_bytes. step: "
      "step, steps, epoch, loss, update_loss, learning_rate, grad_norm, tokens, trained_tokens, "
      "tokens_per_second, utilisation, peak_bytes, forecast_bytes, seconds, seconds_left. eval: "
      "step, loss, perplexity (not of preferences), tokens, rows, best, samples (with prompts). "
      "saved: step, path. done: steps, interrupted, stopped_early, kept_step, best_step, "
      "best_valid_loss, first_loss, final_loss, first_valid_loss, valid_loss, tokens, seconds, "
      "peak_bytes, adapter_path, report_path. test (with --test): loss, perplexity, rows, tokens.";
  args.examples = {
      {"wick train --data data --adapter-path out",
       "the small model inside wick, default settings"},
      {"wick train --model Qwen2.5-0.5B --data data --adapter-path out --rank 16 --epochs 2",
       "a model of yours"},
      {"wick train --config lora.yaml --learning-rate 2e-4",
       "settings of mlx-lm or wick from a file, one of them changed"},
      {"wick train --data data --adapter-path out --resume", "go on after Ctrl-C or a kill"},
      {"wick train --data data --adapter-path out --early-stop 3 --steps-per-eval 50",
       "stop when the held-out loss stops falling, and keep the best"},
      {"wick train --data data --adapter-path out --metrics out/run.jsonl --tensorboard out/logs",
       "write every update for programs and for TensorBoard"},
      {"wick train --data data --adapter-path out --sweep lr=1e-4,3e-4 rank=8,16",
       "four adapters at once, ranked by held-out loss"},
  };
  add_train_flags(args, flags->train);
  add_output_flags(args, flags->output);
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
