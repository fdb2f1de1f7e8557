// SPDX-License-Identifier: Apache-2.0
#include "app/format.h"
#include "app/terminal.h"
#include "app/train_flags.h"
#include "app/train_view.h"
#include "app/verbs.h"

namespace wick {

namespace {

struct Flags {
  TrainFlags train;
  OutputFlags output;
  bool print = false, tries = true;
};

int run(const Args& args, const Flags& flags) {
  Output out(flags.output.json, flags.output.quiet);
  TrainOptions options = flags.train.checked(args, false);
  Engine engine(flags.train.device.options());
  Model model = Model::load(engine, flags.train.model_options());
  std::string plan;
  Forecast forecast;
  if (flags.train.sweep.empty() && flags.train.sweep_data.empty()) {
    Trainer trainer(model, options);
    forecast = flags.tries ? trainer.rehearse() : trainer.forecast();
    if (flags.print) plan = trainer.plan();
  } else {
    Sweep sweep(model, flags.train.sweep_adapters(args, options));
    forecast = flags.tries ? sweep.rehearse() : sweep.forecast();
    if (flags.print) plan = sweep.plan();
  }
  Json event = forecast_json(forecast);
  if (flags.print) event["plan"] = plan;
  out.event(event);
  if (out.json()) return kDone;
  out.say("model   " + describe_model(model.info()));
  std::string table = forecast_table(forecast);
  table.pop_back();
  out.result(table);
  if (flags.print) {
    out.result();
    out.result(plan);
  }
  return kDone;
}

}  // namespace

std::function<int()> declare_plan(Args& args) {
  auto flags = std::make_shared<Flags>();
  args.summary = "memory, to the byte, and time of a training run, before it runs";
  args.details =
      "Takes the flags of wick train and writes nothing. The time comes from trying the step "
      "itself, with the model's weights, where that fits into free memory and a few seconds; "
      "otherwise, and with --no-try, no weight is read and a part of the model runs for a moment. "
      "The forecast says which. Without --data every row is taken to have --max-seq-length tokens, "
      "all of them trained.";
  args.json = "One object, as the forecast of wick train; with --print also plan.";
  args.examples = {
      {"wick plan --model Qwen2.5-0.5B --data data --rank 16", "what would this run take?"},
      {"wick plan --shape qwen2.5-0.5b --batch-size 1 --max-seq-length 512",
       "a model that is not there, and no data"},
      {"wick plan --data data --memory 200MB", "and if it had to fit into 200 MB?"},
      {"wick plan --data data --sweep rank=8,16", "two adapters at once"},
      {"wick plan --data data --print", "every step of the recorded plan"},
  };
  args.group("Plan");
  args.flag("--print", flags->print, "Print the plan of one batch, step by step.");
  args.flag("--try", flags->tries, "Try the step itself, for its time.");
  add_train_flags(args, flags->train);
  add_shape_flag(args, flags->train.model);
  add_output_flags(args, flags->output);
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
