// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "api/report_text.h"
#include "api/trainer_impl.h"
#include "base/check.h"
#include "base/process.h"
#include "model/save.h"
#include "train/checkpoint.h"
#include "train/run.h"

namespace wick {

namespace {

void check_options(const TrainOptions& o) {
  auto refuse = [](const std::string& what) { fail(ErrorCode::kInvalidArgument, what); };
  if (o.adapter_path.empty()) refuse("--adapter-path is empty: name a folder for the result");
  if (o.fine_tune_type == "dora")
    fail(ErrorCode::kUnsupported, "--fine-tune-type dora is not trained yet; use lora or full");
  if (o.fine_tune_type != "lora" && o.fine_tune_type != "full")
    refuse(cat("--fine-tune-type is \"", o.fine_tune_type, "\", wanted lora or full"));
  if (o.optimizer != "adamw" && o.optimizer != "adam")
    fail(ErrorCode::kUnsupported, "--optimizer ", o.optimizer,
         " is not there yet; wanted adamw or adam (adam: without weight decay)");
  if (!o.save_dtype.empty() && o.save_dtype != "f32" && o.save_dtype != "bf16" &&
      o.save_dtype != "f16")
    refuse(cat("--save-dtype is \"", o.save_dtype, "\", wanted f32, bf16 or f16"));
  check_schedule_name(o.lr_schedule);
  if (o.batch_size < 1) refuse(cat("--batch-size is ", o.batch_size, ", wanted at least 1"));
  if (o.grad_accumulation_steps < 1)
    refuse(cat("--grad-accumulation-steps is ", o.grad_accumulation_steps, ", wanted at least 1"));
  if (o.iters <= 0 && o.epochs < 1) refuse(cat("--epochs is ", o.epochs, ", wanted at least 1"));
  auto in_range = [&](const char* name, double x, double low, double high) {
    if (!(x >= low && x <= high))
      refuse(cat("--", name, " is ", x, ", wanted ", low, " to ", high));
  };
  in_range("learning-rate", o.learning_rate, 0.0, 10.0);
  in_range("weight-decay", o.weight_decay, 0.0, 10.0);
  in_range("grad-clip", o.grad_clip, 0.0, 1e9);
  in_range("skip-below", o.skip_below, 0.0, 0.1);
  in_range("beta1", o.beta1, 0.0, 0.999999);
  in_range("beta2", o.beta2, 0.0, 0.9999999);
}

}  // namespace

void Trainer::Impl::declare() {
  const Model::Impl& m = model->impl();
  if (options.fine_tune_type == "full") {
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
    adapter = std::make_shared<Adapter>(Adapter::load(options.init_adapter, linears, start_params));
  } else {
    LoraOptions lora;
    lora.rank = options.rank;
    lora.alpha = static_cast<float>(options.alpha);
    lora.dropout = static_cast<float>(options.dropout);
    lora.targets = options.targets;
    lora.num_layers = options.num_layers;
    adapter = std::make_shared<Adapter>(Adapter::create(lora, linears));
    start_params = adapter->initial_params(options.seed);
  }
  trainable = std::make_shared<Trainable>(train_adapter(*adapter));
}

Json Trainer::Impl::identity() const {
  const TrainOptions& o = options;
  const Model::Impl& m = model->impl();
  Json j;
  j["model"] = m.name();
  j["parameters"] = weight_count(m.config);
  j["dtype"] = dtype_name(m.weights->compute());
  j["data"] = train.file();
  j["rows"] = train.size();
  j["date"] = o.dataset.date;
  j["data_fingerprint"] = cat(train.fingerprint());
  j["fine_tune_type"] = o.fine_tune_type;
  j["trainable"] = adapter ? adapter->param_count() : trainable->layout.size();
  j["targets"] = o.targets;
  j["rank"] = o.rank;
  j["alpha"] = o.alpha;
  j["dropout"] = o.dropout;
  j["num_layers"] = o.num_layers;
  j["batch_size"] = o.batch_size;
  j["grad_accumulation_steps"] = o.grad_accumulation_steps;
  j["updates"] = forecast.updates;
  j["seed"] = o.seed;
  j["shuffle"] = o.shuffle;
  j["optimizer"] = o.optimizer;
  j["learning_rate"] = o.learning_rate;
  j["lr_schedule"] = o.lr_schedule;
  j["warmup"] = o.warmup;
  j["weight_decay"] = o.weight_decay;
  j["grad_clip"] = o.grad_clip;
  if (o.skip_below > 0) j["skip_below"] = o.skip_below;
  j["mask_prompt"] = o.dataset.mask_prompt;
  j["max_seq_length"] = o.dataset.max_seq_length;
  identify_loss(j);
  return j;
}

void Trainer::Impl::save_result(std::span<const float> params) const {
  const Model::Impl& m = model->impl();
  if (adapter) {
    adapter->save(options.adapter_path, params, m.name());
    return;
  }
  write_model_files(m, options.adapter_path);
  std::optional<DType> dtype;
  if (!options.save_dtype.empty()) dtype = parse_dtype(options.save_dtype);
  save_weights(options.adapter_path, m.config, *m.weights, dtype,
               [&](const WeightSpec& spec) -> std::optional<std::vector<float>> {
                 const ParamLayout::Entry* e = trainable->layout.find(spec.name);
                 if (!e) return std::nullopt;
                 auto part = params.subspan(static_cast<size_t>(e->offset),
                                            static_cast<size_t>(e->shape.elements()));
                 return std::vector<float>(part.begin(), part.end());
               });
}

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
                                               BufferPtr params) {
  std::vector<std::string> texts;
  if (prompts.empty()) return texts;
  Model::Impl& m = model->impl();
  const ParamSource source = adapter ? ParamSource{adapter.get(), nullptr} : trainable->source();
  TextGenerator generator(m.backend(), m.config, *m.weights, m.words(), source, std::move(params));
  DecodeOptions decode;
  decode.max_tokens = 64;
  decode.stop_tokens = m.stop_tokens();
  for (const PromptAndAnswer& p : prompts) {
    // Samples are for the report: a model that gives no numbers any more is the run's to report.
    try {
      texts.push_back(generator.generate(p.prompt, decode).text);
    } catch (const Error& e) {
      texts.push_back(cat("(no answer: ", e.what(), ")"));
    }
  }
  return texts;
}

void Trainer::Impl::prepare(Model& on, const TrainOptions& wanted) {
  model = &on;
  options = wanted;
  check_options(options);
  if (options.optimizer == "adam") options.weight_decay = 0;
  check_loss();
  load_data();
  declare();
  open_reference();
}

// Found out now rather than after an hour.
void Trainer::Impl::check_folder() const {
  if (options.data.empty())
    fail(ErrorCode::kInvalidArgument,
         "--data is missing: a folder with train.jsonl, or a JSON-lines file");
  make_folder(options.adapter_path);
  int64_t free_bytes = free_disk_bytes(options.adapter_path.c_str());
  if (free_bytes >= 0 && free_bytes < forecast.disk_bytes)
    fail(ErrorCode::kIo, options.adapter_path, ": the disk has ", report::bytes(free_bytes),
         " free, the result takes ", report::bytes(forecast.disk_bytes));
  write_file(std::filesystem::path(options.adapter_path) / ".wick", "");
  std::filesystem::remove(std::filesystem::path(options.adapter_path) / ".wick");
}

RunSetup Trainer::Impl::run_setup(const Forecast& expected, int64_t process_bytes) {
  const Model::Impl& m = model->impl();
  RunSetup setup;
  setup.train = &train;
  setup.valid = valid ? &*valid : nullptr;
  setup.options = options;
  setup.identity = identity();
  setup.peak_gflops = m.backend().peak_gflops(m.weights->compute());
  // The plan's memory on top of what the process had: its code, the tokenizer, the data.
  setup.forecast_bytes = expected.peak_bytes + process_bytes;
  setup.update_seconds = 1e-3 * expected.step_ms;
  setup.eval_seconds = 1e-3 * expected.eval_ms;
  setup.save_result = [this](std::span<const float> params) { save_result(params); };
  return setup;
}

void Trainer::Impl::finish(TrainResult& result, const std::vector<PromptAndAnswer>& prompts,
                           const std::vector<std::string>& before, BufferPtr params) {
  const Model::Impl& m = model->impl();
  std::vector<std::string> after = answer(prompts, std::move(params));
  for (size_t i = 0; i < prompts.size(); ++i)
    result.samples.push_back(
        {prompts[i].words, m.words().decode(prompts[i].answer, true), before[i], after[i]});
  std::filesystem::path report = std::filesystem::path(options.adapter_path) / "report.html";
  write_report(report, options, model->info(), model->engine().device(), forecast, result);
  result.report_path = report.string();
}

Trainer::Trainer(Model& model, const TrainOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->prepare(model, options);
  impl_->choose_step();
}

Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

const Forecast& Trainer::forecast() const { return impl_->forecast; }
std::string Trainer::plan() const { return print(impl_->step->micro_plan()); }

TrainResult Trainer::run(const TrainCallbacks& callbacks) {
  Impl& t = *impl_;
  Model::Impl& m = t.model->impl();
  if (callbacks.on_message)
    for (const std::string& line : t.messages) callbacks.on_message(line);
  if (callbacks.on_forecast) callbacks.on_forecast(t.forecast);
  t.check_folder();
  t.check_device();

  const int64_t process_bytes = t.process_bytes();
  t.step->compile(m.backend(), *m.weights);
  t.open_prefix();
  t.step->set_params(t.adapter ? t.start_params : initial_weights(*t.trainable, *m.weights));

  std::vector<PromptAndAnswer> prompts = t.sample_prompts();
  // A resumed run has no "before" any more; B was zero then, so the base answers.
  std::vector<std::string> before = t.answer(prompts, t.step->params_buffer());

  TrainRun run(*t.step, t.run_setup(t.forecast, process_bytes));
  TrainResult result = run.run(callbacks);

  m.adapter = t.adapter;
  m.trained = t.adapter ? nullptr : t.trainable;
  m.params = t.step->params_buffer();
  m.adapter_path = t.adapter ? t.options.adapter_path : "";
  ++m.revision;
  t.finish(result, prompts, before, t.step->params_buffer());
  return result;
}

}  // namespace wick
