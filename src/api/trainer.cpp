// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>

#include "api/report_text.h"
#include "api/trainer_impl.h"
#include "api/watch.h"
#include "base/check.h"
#include "base/process.h"
#include "model/base_sketch.h"
#include "model/save.h"
#include "train/checkpoint.h"
#include "train/run.h"

namespace wick {

LoraOptions lora_options(const TrainOptions& o) {
  LoraOptions lora;
  lora.rank = o.rank;
  lora.alpha = static_cast<float>(o.alpha);
  lora.dropout = static_cast<float>(o.dropout);
  lora.targets = o.targets;
  lora.num_layers = o.num_layers;
  lora.rslora = o.rslora;
  lora.dora = o.dora;
  lora.init = o.init;
  lora.bias = o.bias;
  lora.lora_plus_ratio = static_cast<float>(o.lora_plus_ratio);
  lora.rank_pattern = o.rank_pattern;
  lora.alpha_pattern = o.alpha_pattern;
  lora.layers_to_transform = o.layers_to_transform;
  lora.exclude_modules = o.exclude_modules;
  lora.modules_to_save = o.modules_to_save;
  lora.trainable_token_indices = o.trainable_token_indices;
  return lora;
}

namespace {

constexpr int64_t kMostRows = 1'000'000'000;  // of a batch, batches of an update, and epochs

void check_options(const TrainOptions& o) {
  auto refuse = [](const std::string& what) { fail(ErrorCode::kInvalidArgument, what); };
  if (o.adapter_path.empty()) refuse("--adapter-path is empty: name a folder for the result");
  if (o.fine_tune_type != "lora" && o.fine_tune_type != "dora" && o.fine_tune_type != "full")
    refuse(cat("--fine-tune-type is \"", o.fine_tune_type, "\", wanted lora, dora or full"));
  if (o.fine_tune_type == "full" && o.dora)
    refuse("--dora is a kind of adapter; leave --fine-tune-type full out");
  if (!o.save_dtype.empty() && o.save_dtype != "f32" && o.save_dtype != "bf16" &&
      o.save_dtype != "f16")
    refuse(cat("--save-dtype is \"", o.save_dtype, "\", wanted f32, bf16 or f16"));
  check_schedule_name(o.lr_schedule);
  for (const auto& [name, rows] : {std::pair{"batch-size", o.batch_size},
                                   {"grad-accumulation-steps", o.grad_accumulation_steps}})
    if (rows < 1 || rows > kMostRows)
      refuse(cat("--", name, " is ", rows, ", wanted 1 to ", report::count(kMostRows)));
  if (o.iters <= 0 && !(o.epochs > 0 && o.epochs <= static_cast<double>(kMostRows)))
    refuse(cat("--epochs is ", o.epochs, ", wanted more than 0 and at most ",
               report::count(kMostRows)));
  auto in_range = [&](const char* name, double x, double low, double high) {
    if (!(x >= low && x <= high))
      refuse(cat("--", name, " is ", x, ", wanted ", low, " to ", high));
  };
  in_range("learning-rate", o.learning_rate, 0.0, 10.0);
  in_range("warmup-init", o.warmup_init, 0.0, 10.0);
  if (o.lr_end != TrainOptions().lr_end) in_range("lr-end", o.lr_end, 0.0, 10.0);
  in_range("grad-clip", o.grad_clip, 0.0, 1e9);
  in_range("alpha", o.alpha, 0.0, 1e9);
  in_range("val-split", o.val_split, 0.0, 1e15);
  // Below 0 stands for a default.
  for (const auto& [name, x] : {std::pair{"warmup", o.warmup},
                                {"weight-decay", o.weight_decay},
                                {"beta1", o.beta1},
                                {"beta2", o.beta2},
                                {"momentum", o.momentum},
                                {"beta", o.beta}})
    if (!std::isfinite(x)) refuse(cat("--", name, " is ", x, ", wanted a number"));
  if (o.warmup > 0 && o.warmup != std::floor(o.warmup))
    refuse(cat("--warmup is ", o.warmup,
               ", wanted a whole number of updates; left out, it is 3 % of them"));
  for (const auto& [name, n, least] : {std::tuple{"steps-per-report", o.steps_per_report, 1},
                                       {"steps-per-eval", o.steps_per_eval, 0},
                                       {"save-every", o.save_every, 1},
                                       {"val-batches", o.val_batches, -1},
                                       {"memory", o.memory_bytes, 0},
                                       {"prefix-cache-size", o.prefix_cache_bytes, 0}})
    if (n < least) refuse(cat("--", name, " is ", n, ", wanted at least ", least));
  // No rows would be looked at, which is no loss of 0.
  if (o.val_batches == 0) refuse("--val-batches is 0, wanted at least 1, or -1 for all");
  in_range("skip-below", o.skip_below, 0.0, 0.1);
  in_range("lr-decay-share", o.lr_decay_share, 1e-3, 1.0);
  in_range("lr-decay-rate", o.lr_decay_rate, 0.0, 1.0);
  in_range("early-stop-delta", o.early_stop_delta, 0.0, 1e9);
  in_range("hook-seconds", o.hook_seconds, 0.001, 86400.0);
  if (o.lr_cycles < 1) refuse(cat("--lr-cycles is ", o.lr_cycles, ", wanted at least 1"));
  if (o.lr_step_size < 1) refuse(cat("--lr-step-size is ", o.lr_step_size, ", wanted at least 1"));
  if (o.early_stop < 0) refuse(cat("--early-stop is ", o.early_stop, ", wanted at least 0"));
}

// What PEFT should load the adapter onto: a name of the hub stays one, wherever it lies here.
std::string base_name(const Model::Impl& m) {
  std::error_code none;
  const std::string& given = m.options.model;
  const bool from_hub = !given.empty() && !std::filesystem::is_directory(given, none);
  return m.options.shape.empty() && from_hub ? given : m.name();
}

// An adapter to start from brings its rank, alpha, targets and kind. What asks for something else
// is refused; what nobody chose asks for nothing.
void check_init_adapter(const TrainOptions& o, const Adapter& adapter,
                        const std::vector<LinearInfo>& linears) {
  const TrainOptions usual;
  const LoraOptions& own = adapter.options();
  auto asks = [&](const char* name, bool changed) {
    return changed || std::find(o.asked.begin(), o.asked.end(), name) != o.asked.end();
  };
  auto refuse = [&](const char* flag, const std::string& has, const std::string& asked) {
    fail(ErrorCode::kInvalidArgument, "--init-adapter ", o.init_adapter, " has ", has, ", and ",
         flag, " asks for ", asked, "; leave ", flag, " out");
  };
  if (asks("rank", o.rank != usual.rank) && o.rank != own.rank)
    refuse("--rank", cat("rank ", own.rank), std::to_string(o.rank));
  if (asks("alpha", o.alpha != usual.alpha) && static_cast<float>(o.alpha) != own.alpha)
    refuse("--alpha", cat("alpha ", own.alpha), cat(o.alpha));
  if (asks("dropout", o.dropout != usual.dropout) && static_cast<float>(o.dropout) != own.dropout)
    refuse("--lora-dropout", cat("dropout ", own.dropout), cat(o.dropout));
  Json kind = kind_of(o, false);
  kind.erase("lora_plus_ratio");
  if (own.dora) kind.erase("dora");
  if (own.rslora) kind.erase("rslora");
  if (own.bias == o.bias) kind.erase("bias");
  if (!kind.empty())
    fail(ErrorCode::kInvalidArgument, "--init-adapter brings its own kind of adapter; leave ",
         kind.begin().key(), " out");
  if (!asks("targets", o.targets != usual.targets) &&
      !asks("num_layers", o.num_layers != usual.num_layers))
    return;
  const Adapter asked = Adapter::create(lora_options(o), linears);
  bool same = asked.modules().size() == adapter.modules().size();
  for (const LoraModule& m : asked.modules()) same = same && adapter.find(m.module);
  if (!same)
    refuse("--targets (or --num-layers)", cat(adapter.modules().size(), " modules"), "others");
}

// Full training has no adapter that these could be settings of.
void refuse_adapter_settings(const TrainOptions& o) {
  if (!o.init_adapter.empty())
    fail(ErrorCode::kInvalidArgument,
         "--fine-tune-type full begins with the model's own weights, and --init-adapter ",
         o.init_adapter, " is beside them; write it into them first with wick merge");
  if (const Json kind = kind_of(o, false); !kind.empty())
    fail(ErrorCode::kInvalidArgument, "--fine-tune-type full trains the model's own weights, and ",
         kind.begin().key(), " is a setting of adapters; leave one of them out");
}

}  // namespace

void Trainer::Impl::declare() {
  const Model::Impl& m = model->impl();
  if (options.fine_tune_type == "full") {
    refuse_adapter_settings(options);
    if (m.adapter)
      fail(ErrorCode::kInvalidArgument,
           "--fine-tune-type full trains the model's own weights; "
           "merge the adapter ",
           m.adapter_path, " first");
    for (const WeightSpec& spec : weight_specs(m.config))
      if (dtype_is_quantized(m.weights->dtype(spec)))
        fail(
            ErrorCode::kInvalidArgument,
            "--fine-tune-type full changes the model's own weights, and quantised ones are frozen; "
            "use lora, or leave --quantize out (wick convert --dequantize for a folder)");
    trainable = std::make_shared<Trainable>(train_weights(m.config, options.num_layers));
    return;
  }
  std::vector<LinearInfo> linears = adaptable_linears(m.config);
  if (!options.init_adapter.empty()) {
    adapter = std::make_shared<Adapter>(Adapter::load(options.init_adapter, linears, start_params,
                                                      static_cast<float>(options.lora_plus_ratio),
                                                      /*to_train=*/true));
    check_init_adapter(options, *adapter, linears);
    note_adapter(m, *adapter, options.init_adapter);
  } else {
    adapter = std::make_shared<Adapter>(Adapter::create(lora_options(options), linears));
  }
  trainable = std::make_shared<Trainable>(train_adapter(*adapter));
}

void Trainer::Impl::save_result(const std::string& folder, std::span<const float> params) const {
  const Model::Impl& m = model->impl();
  make_folder(folder);
  if (adapter) {
    adapter->save(folder, params, base_name(m), base_sketch(m.config, *m.weights));
    if (replaces_model && folder == options.adapter_path) remove_model(folder);
    return;
  }
  std::optional<DType> dtype;
  if (!options.save_dtype.empty()) dtype = parse_dtype(options.save_dtype);
  save_weights(folder, m.config, *m.weights, dtype,
               [&](const WeightSpec& spec) -> std::optional<std::vector<float>> {
                 const ParamLayout::Entry* e = trainable->layout.find(spec.name);
                 if (!e) return std::nullopt;
                 auto part = params.subspan(static_cast<size_t>(e->offset),
                                            static_cast<size_t>(e->shape.elements()));
                 return std::vector<float>(part.begin(), part.end());
               });
  write_model_files(m, folder);
  // An adapter of an earlier run there: whoever loads the folder would put it on top.
  std::error_code none;
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
    std::filesystem::remove(std::filesystem::path(folder) / file, none);
}

void Trainer::Impl::prepare(Model& on, const TrainOptions& wanted) {
  model.emplace(on.impl().share());
  on.impl().weights->shorten(false);
  options = wanted;
  check_options(options);
  resolve_optimizer(options);
  if (options.fine_tune_type == "dora") {
    options.fine_tune_type = "lora";
    options.dora = true;
  }
  check_loss();
  load_data();
  if (const int64_t updates = count_updates(options, train.rows_per_epoch());
      !forecast.assumed_rows && options.warmup > static_cast<double>(updates))
    messages.push_back(options.warmup_from_init
                           ? cat("lr_schedule.warmup ", report::number(options.warmup),
                                 " is more than the run's ", report::count(updates),
                                 " updates: the rate never reaches its height")
                           : cat("--warmup ", report::number(options.warmup),
                                 " is more than the run's updates: the rate rises over all ",
                                 report::count(updates)));
  if (const int64_t steps = options.grad_accumulation_steps, batches = options.iters;
      batches > 0 && batches % steps != 0) {
    const int64_t updates = count_updates(options, train.rows_per_epoch());
    messages.push_back(cat("--iters ", batches, " is no multiple of --grad-accumulation-steps ",
                           steps, ": updates are whole, so the run has ", report::count(updates),
                           updates == 1 ? " update" : " updates", " of ", steps, " batches"));
  }
  if (options.fine_tune_type == "lora" && options.alpha == 0 && options.alpha_pattern.empty())
    messages.push_back(
        "--alpha is 0: what the adapter's A and B say is taken 0 times, so they learn nothing");
  declare();
  if (adapter && options.bias != "none" &&
      std::none_of(adapter->wholes().begin(), adapter->wholes().end(),
                   [](const WholeModule& w) { return w.kind == ModuleKind::kBias; }))
    messages.push_back(cat("--bias ", options.bias, ": the model has no such biases to train"));
  look_at_folder();
  open_reference();
}

std::vector<Trainer::Impl*> Trainer::Impl::runs() {
  std::vector<Impl*> all = {this};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

std::vector<const Trainer::Impl*> Trainer::Impl::runs() const {
  std::vector<const Impl*> all = {this};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

RunSetup Trainer::Impl::run_setup(const Forecast& expected) {
  const Model::Impl& m = model->impl();
  RunSetup setup;
  setup.train = &train;
  setup.valid = valid ? &*valid : nullptr;
  setup.options = options;
  setup.identity = identity();
  setup.peak_gflops = m.backend().peak_gflops(m.weights->compute());
  // The plan's memory on top of what the process had: its code, the tokenizer, the data.
  setup.forecast_bytes = expected.peak_bytes + expected.process_bytes;
  setup.expected = {1e-3 * expected.step_ms, 1e-3 * expected.prefix_ms, 1e-3 * expected.eval_ms,
                    1e-3 * expected.save_ms,
                    expected.prefix_ms > 0 ? order().updates_per_epoch() : 0};
  setup.save_result = [this](const std::string& folder, std::span<const float> params) {
    save_result(folder, params);
  };
  return setup;
}

void Trainer::Impl::finish(TrainResult& result, const std::vector<PromptAndAnswer>& prompts,
                           const std::vector<std::string>& before, BufferPtr params,
                           const std::function<void(const std::string&)>& say) {
  const Model::Impl& m = model->impl();
  // Who stops a run does not wait for samples.
  std::vector<std::string> after;
  if (!result.interrupted) after = answer(prompts, std::move(params));
  result.peak_bytes = peak_memory_bytes();
  for (size_t i = 0; i < after.size(); ++i)
    result.samples.push_back(
        {prompts[i].words, m.words().decode(prompts[i].answer, true), before[i], after[i]});
  std::filesystem::path report = std::filesystem::path(options.adapter_path) / "report.html";
  try {
    write_report(report, options, model->info(), model->engine().device(), forecast, result);
    result.report_path = report.string();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIo) throw;
    if (say) say(cat("warning: ", e.what(), "; what was trained is saved without it"));
  }
}

Trainer::Trainer(Model& model, const TrainOptions& options) : impl_(std::make_unique<Impl>()) {
  const EngineTurn turn(model.engine());
  impl_->prepare(model, options);
  impl_->choose_step();
}

Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

const Forecast& Trainer::forecast() const {
  const EngineTurn turn(impl_->model->engine());
  impl_->forecast_time();
  return impl_->forecast;
}
const Forecast& Trainer::rehearse() {
  const EngineTurn turn(impl_->model->engine());
  impl_->try_now();
  return impl_->forecast;
}
std::string Trainer::plan() const { return print(impl_->step->micro_plan()); }

TrainResult Trainer::run(const TrainCallbacks& callbacks) {
  Impl& t = *impl_;
  const EngineTurn turn(t.model->engine(), true);
  Model::Impl& m = t.model->impl();
  if (t.has_run)
    fail(ErrorCode::kInvalidArgument,
         "this Trainer has run; make another one, with `resume` to go on");
  if (callbacks.on_message)
    for (const std::string& line : t.messages) callbacks.on_message(line);
  RunFolder folder = t.check_folder();
  t.check_device();
  const bool rehearsed = t.can_rehearse();
  // What --memory costs is known by rates alone: the free plan is not there to be tried.
  if (!rehearsed || t.free_step) t.forecast_time();
  TrainResult nothing;
  nothing.interrupted = true;
  auto given_up = [&] { return callbacks.should_give_up && callbacks.should_give_up(); };
  if (given_up()) return nothing;

  if (!t.start(callbacks.should_give_up) || given_up()) return nothing;
  std::vector<PromptAndAnswer> prompts = t.sample_prompts();
  // A resumed run has no "before" any more; B was zero then, so the base answers.
  const auto asked = std::chrono::steady_clock::now();
  std::vector<std::string> before =
      t.answer(prompts, t.step->params_buffer(), callbacks.should_give_up);
  const std::chrono::duration<double> answered = std::chrono::steady_clock::now() - asked;
  if (rehearsed) {
    t.rehearse_run(answered.count(), {}, callbacks.should_give_up);
  } else {
    t.count_untried(answered.count());
  }
  if (given_up()) return nothing;
  if (callbacks.on_forecast) callbacks.on_forecast(t.forecast);
  t.open_prefix();

  RunSetup setup = t.run_setup(t.forecast);
  setup.answer_prompts = [&t, &prompts] {
    const std::vector<std::string> texts = t.answer(prompts, t.step->params_buffer());
    std::vector<EvalSample> samples;
    for (size_t i = 0; i < texts.size(); ++i) samples.push_back({prompts[i].words, texts[i]});
    return samples;
  };
  setup.hold_folder = [&] { folder.hold(callbacks.on_message); };
  setup.should_give_up = callbacks.should_give_up;
  TrainResult result;
  t.has_run = true;
  try {
    TrainRun run(*t.step, std::move(setup));
    Watch watch(t.options, t.options.resume ? std::optional(run.first_update()) : std::nullopt,
                run.look_due());
    result = run.run(watch.around(callbacks));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kCancelled) throw;
    t.has_run = false;
    return nothing;
  }

  m.adapter = t.adapter;
  m.trained = t.adapter ? nullptr : t.trainable;
  m.params = t.step->params_buffer();
  m.adapter_path = t.adapter ? t.options.adapter_path : "";
  m.adapter_note.clear();
  ++m.revision;
  t.finish(result, prompts, before, t.step->params_buffer(), callbacks.on_message);
  return result;
}

}  // namespace wick
