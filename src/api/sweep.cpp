// SPDX-License-Identifier: Apache-2.0
#include "wick/sweep.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "api/trainer_impl.h"
#include "api/watch.h"
#include "base/check.h"
#include "base/process.h"
#include "train/checkpoint.h"
#include "train/run.h"
#include "train/sweep.h"

namespace wick {

struct Sweep::Impl {
  Model* model = nullptr;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Trainer::Impl>> lanes;
  // The first lane is the lead: the joined step, its fit and its forecast are the lead's.
  Trainer::Impl& lead() { return *lanes.front(); }

  void check() const;
  void join();
  TrainCallbacks callbacks_of(size_t lane, const SweepCallbacks& callbacks) const;
  void write_summary(SweepResult& result, const std::string& folder) const;
};

// What the joined step has one of.
void Sweep::Impl::check() const {
  const TrainOptions& first = lanes.front()->options;
  if (first.fine_tune_type != "lora")
    fail(ErrorCode::kUnsupported, "--sweep trains adapters; --fine-tune-type is ",
         first.fine_tune_type);
  // One that was killed before its first checkpoint has left its folder.
  std::error_code none;
  bool any = false;
  for (const auto& lane : lanes)
    any |= std::filesystem::is_directory(lane->options.adapter_path, none);
  if (first.resume && !any)
    fail(ErrorCode::kNotFound, "--resume: no adapter of this sweep is in ",
         std::filesystem::path(first.adapter_path).parent_path().string(),
         "; leave --resume out to start from the beginning");
}

void Sweep::Impl::join() {
  std::vector<const Adapter*> adapters;
  for (const auto& lane : lanes) adapters.push_back(lane->adapter.get());
  lead().trainable = std::make_shared<Trainable>(train_adapters(adapters));
  for (size_t k = 1; k < lanes.size(); ++k) lead().others.push_back(lanes[k].get());
  lead().choose_step();
  for (const auto& lane : lanes) {
    if (lane.get() != &lead()) {
      lane->forecast = lead().forecast;
      lane->run_limits = lead().run_limits;
      lane->plan_order = lead().plan_order;
    }
    lane->forecast.updates = count_updates(lane->options, lane->train.rows_per_epoch());
  }
}

Sweep::Sweep(Model& model, std::vector<SweepAdapter> adapters) : impl_(std::make_unique<Impl>()) {
  if (adapters.empty()) fail(ErrorCode::kInvalidArgument, "--sweep: no adapter");
  impl_->model = &model;
  for (SweepAdapter& a : adapters) {
    impl_->names.push_back(a.name);
    impl_->lanes.push_back(std::make_unique<Trainer::Impl>());
    // An adapter that had not been saved yet starts again.
    TrainOptions o = a.options;
    impl_->lanes.back()->options = o;
    impl_->lanes.back()->model = &model;
  }
  impl_->check();
  for (auto& lane : impl_->lanes) {
    TrainOptions o = lane->options;
    o.resume = o.resume && load_checkpoint_run(o.adapter_path).has_value();
    lane->beside = impl_->lanes.front()->beside;
    lane->prepare(model, o);
  }
  impl_->join();
}

Sweep::~Sweep() = default;
Sweep::Sweep(Sweep&&) noexcept = default;
Sweep& Sweep::operator=(Sweep&&) noexcept = default;

std::string Sweep::plan() const { return print(impl_->lanes.front()->step->micro_plan()); }

const Forecast& Sweep::forecast() const {
  impl_->lead().forecast_time();
  return impl_->lead().forecast;
}

const Forecast& Sweep::rehearse() {
  impl_->lead().try_now();
  return impl_->lead().forecast;
}

TrainCallbacks Sweep::Impl::callbacks_of(size_t k, const SweepCallbacks& c) const {
  TrainCallbacks own;
  const std::string& name = names[k];
  if (c.on_step) own.on_step = [&c, &name](const StepReport& r) { c.on_step(name, r); };
  if (c.on_eval) own.on_eval = [&c, &name](const EvalReport& r) { c.on_eval(name, r); };
  if (c.on_save) own.on_save = [&c, &name](const SaveReport& r) { c.on_save(name, r); };
  if (c.on_message)
    own.on_message = [&c, &name](const std::string& line) { c.on_message(name + ": " + line); };
  own.should_stop = c.should_stop;
  return own;
}

SweepResult Sweep::run(const std::string& folder, const SweepCallbacks& callbacks) {
  Impl& s = *impl_;
  Model::Impl& m = s.model->impl();
  std::set<std::string> said;  // most lines are those of every lane
  for (const auto& lane : s.lanes)
    for (const std::string& line : lane->messages)
      if (said.insert(line).second && callbacks.on_message) callbacks.on_message(line);
  std::vector<FolderLock> locks;
  for (const auto& lane : s.lanes) locks.push_back(lane->check_folder());
  s.lead().check_device();
  const bool rehearsed = s.lead().can_rehearse();
  if (!rehearsed || s.lead().free_step) s.lead().forecast_time();

  TrainStep& step = *s.lead().step;
  s.lead().start();
  if (rehearsed) s.lead().rehearse_run(0);
  if (callbacks.on_forecast) callbacks.on_forecast(forecast());
  s.lead().open_prefix();
  JointStep joint(step);
  auto params_of = [&](size_t k) {
    const std::vector<float> params = joint.lane(k).params();
    const auto count = static_cast<int64_t>(params.size());
    BufferPtr buffer = m.backend().allocate(DType::kF32, count);
    m.backend().upload(*buffer, DType::kF32, 0, count, params.data());
    return buffer;
  };
  std::vector<std::vector<PromptAndAnswer>> prompts;
  std::vector<std::vector<std::string>> before;
  for (size_t k = 0; k < s.lanes.size(); ++k) {
    prompts.push_back(s.lanes[k]->sample_prompts());
    // B is zero at the start, so all answer alike.
    const bool alike = k > 0 && s.lanes[k]->options.data == s.lanes[0]->options.data &&
                       s.lanes[k]->options.init_adapter.empty();
    before.push_back(alike ? before[0] : s.lanes[k]->answer(prompts[k], params_of(k)));
  }

  std::vector<TrainResult> results(s.lanes.size());
  const std::vector<std::exception_ptr> errors = joint.run([&](size_t k) {
    Trainer::Impl& lane = *s.lanes[k];
    RunSetup setup = lane.run_setup(s.lead().forecast);
    setup.answer_prompts = [&, k] {
      const std::vector<std::string> texts = s.lanes[k]->answer(prompts[k], params_of(k));
      std::vector<EvalSample> samples;
      for (size_t i = 0; i < texts.size(); ++i) samples.push_back({prompts[k][i].words, texts[i]});
      return samples;
    };
    setup.peak_gflops = 0;  // of all lanes together, not of one
    TrainRun run(joint.lane(k), std::move(setup));
    Watch watch(lane.options, run.first_update());
    const TrainCallbacks own = s.callbacks_of(k, callbacks);
    results[k] = run.run(watch.around(own));
  });

  SweepResult result;
  for (size_t k = 0; k < s.lanes.size(); ++k) {
    SweepEntry entry{s.names[k], results[k], ""};
    if (errors[k]) {
      try {
        std::rethrow_exception(errors[k]);
      } catch (const Error& e) {
        entry.error = e.what();
      }
      entry.result.adapter_path = s.lanes[k]->options.adapter_path;
    } else {
      s.lanes[k]->finish(entry.result, prompts[k], before[k], params_of(k));
    }
    result.interrupted |= entry.result.interrupted;
    result.seconds = std::max(result.seconds, entry.result.seconds);
    result.entries.push_back(std::move(entry));
  }
  auto measure = [](const SweepEntry& e) {
    if (!e.error.empty()) return std::numeric_limits<double>::infinity();
    const double loss = e.result.evals.empty() ? e.result.final_loss : e.result.valid_loss;
    return std::isfinite(loss) ? loss : std::numeric_limits<double>::max();
  };
  std::stable_sort(
      result.entries.begin(), result.entries.end(),
      [&](const SweepEntry& a, const SweepEntry& b) { return measure(a) < measure(b); });
  result.peak_bytes = peak_memory_bytes();
  for (size_t k = 0; k < s.lanes.size(); ++k) {
    if (s.names[k] != result.entries.front().name || !result.entries.front().error.empty())
      continue;
    m.adapter = s.lanes[k]->adapter;
    m.trained = nullptr;
    m.params = params_of(k);
    m.adapter_path = s.lanes[k]->options.adapter_path;
    ++m.revision;
  }
  s.write_summary(result, folder);
  return result;
}

void Sweep::Impl::write_summary(SweepResult& result, const std::string& folder) const {
  Json list = Json::array();
  for (const SweepEntry& e : result.entries) {
    Json j = {{"name", e.name},
              {"adapter_path", e.result.adapter_path},
              {"steps", e.result.steps},
              {"final_loss", e.result.final_loss}};
    if (!e.result.evals.empty()) j["valid_loss"] = e.result.valid_loss;
    if (!e.error.empty()) j["error"] = e.error;
    list.push_back(std::move(j));
  }
  make_folder(folder);
  const std::filesystem::path path = std::filesystem::path(folder) / "summary.json";
  write_file(path, dump_json({{"adapters", list},
                              {"interrupted", result.interrupted},
                              {"seconds", result.seconds},
                              {"peak_bytes", result.peak_bytes}}) +
                       "\n");
  result.summary_path = path.string();
}

}  // namespace wick
