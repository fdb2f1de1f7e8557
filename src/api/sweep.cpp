// SPDX-License-Identifier: Apache-2.0
#include "wick/sweep.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "api/trainer_impl.h"
#include "api/watch.h"
#include "base/check.h"
#include "base/process.h"
#include "base/rng.h"
#include "train/checkpoint.h"
#include "train/run.h"
#include "train/sweep.h"

namespace wick {

struct Sweep::Impl {
  std::optional<Model> model;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Trainer::Impl>> lanes;
  // The first lane is the lead: the joined step, its fit and its forecast are the lead's.
  Trainer::Impl& lead() { return *lanes.front(); }
  bool resumes = false;       // also the lanes that start again
  bool rehearsed = false;     // the step is tried before the run
  double answer_seconds = 0;  // of the prompts, all adapters together

  void check() const;
  void join();
  TrainCallbacks callbacks_of(size_t lane, const SweepCallbacks& callbacks) const;
  // What is found out before a weight is read.
  std::vector<RunFolder> begin(const SweepCallbacks& callbacks);
  // The folder of the summary, unless it is that of an adapter.
  std::optional<FolderLock> lock(const std::string& folder) const;
  // False: given up.
  bool start(const SweepCallbacks& callbacks);
  // What the run takes, once its prompts have been answered.
  void tell_forecast(const SweepCallbacks& callbacks);
  BufferPtr params_of(JointStep& joint, size_t lane) const;
  // The prompts that each adapter is asked before and after, and its answers before.
  struct Samples {
    std::vector<std::vector<PromptAndAnswer>> prompts;
    std::vector<std::vector<std::string>> before;
  };
  Samples ask_before(JointStep& joint, const StopAsked& stop);
  // One lane's run, inside the joined one.
  TrainResult run_lane(JointStep& joint, size_t lane, const std::vector<PromptAndAnswer>& prompts,
                       RunFolder& folder, const SweepCallbacks& callbacks);
  // The entries, best first.
  SweepResult collect(JointStep& joint, std::vector<TrainResult> results,
                      const std::vector<std::exception_ptr>& errors, const Samples& samples,
                      const SweepCallbacks& callbacks);
  static uint64_t rows_key(const Trainer::Impl& lane, bool held_out);
  // Requires: the entries in the order of the lanes.
  void rank(SweepResult& result, const SweepCallbacks& callbacks) const;
  // The model goes on with the adapter that did best.
  void take_best(JointStep& joint, const SweepResult& result);
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
      lane->joint_limits = lead().joint_limits;
      lane->plan_order = lead().plan_order;
    }
    lane->forecast.updates = count_updates(lane->options, lane->train.rows_per_epoch());
  }
}

Sweep::Sweep(Model& model, std::vector<SweepAdapter> adapters) : impl_(std::make_unique<Impl>()) {
  if (adapters.empty()) fail(ErrorCode::kInvalidArgument, "--sweep: no adapter");
  const EngineTurn turn(model.engine());
  impl_->model.emplace(model.impl().share());
  for (SweepAdapter& a : adapters) {
    impl_->names.push_back(a.name);
    impl_->lanes.push_back(std::make_unique<Trainer::Impl>());
    impl_->lanes.back()->options = a.options;
    impl_->resumes |= a.options.resume;
    impl_->lanes.back()->model.emplace(model.impl().share());
  }
  impl_->check();
  for (auto& lane : impl_->lanes) {
    TrainOptions o = lane->options;
    // An adapter that had not been saved yet starts again.
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
  const EngineTurn turn(impl_->model->engine());
  impl_->lead().forecast_time();
  return impl_->lead().forecast;
}

const Forecast& Sweep::rehearse() {
  const EngineTurn turn(impl_->model->engine());
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

std::vector<RunFolder> Sweep::Impl::begin(const SweepCallbacks& callbacks) {
  std::set<std::string> said;  // most lines are those of every lane
  for (const auto& lane : lanes)
    for (const std::string& line : lane->messages)
      if (said.insert(line).second && callbacks.on_message) callbacks.on_message(line);
  // Their losses are of other texts, and a rank among them says little.
  const auto other = [this](const std::unique_ptr<Trainer::Impl>& lane) {
    return lane->options.val_split > 0 && lane->valid && lead().valid &&
           lane->options.data == lead().options.data &&
           lane->valid->fingerprint() != lead().valid->fingerprint();
  };
  if (std::any_of(lanes.begin(), lanes.end(), other) && callbacks.on_message)
    callbacks.on_message(
        "--val-split draws other rows for each seed, so the held-out losses are of other rows; "
        "with a valid file they are of the same");
  std::vector<RunFolder> folders;
  for (const auto& lane : lanes) folders.push_back(lane->check_folder());
  lead().check_device();
  return folders;
}

std::optional<FolderLock> Sweep::Impl::lock(const std::string& folder) const {
  std::error_code none;
  for (const auto& lane : lanes)
    if (std::filesystem::equivalent(lane->options.adapter_path, folder, none)) return std::nullopt;
  return FolderLock(folder);
}

bool Sweep::Impl::start(const SweepCallbacks& callbacks) {
  rehearsed = lead().can_rehearse();
  if (!rehearsed || lead().free_step) lead().forecast_time();
  return lead().start(callbacks.should_give_up);
}

void Sweep::Impl::tell_forecast(const SweepCallbacks& callbacks) {
  if (rehearsed)
    lead().rehearse_run(answer_seconds, {}, callbacks.should_give_up);
  else
    lead().count_untried(answer_seconds);
  const bool wanted = !callbacks.should_give_up || !callbacks.should_give_up();
  if (callbacks.on_forecast && wanted) callbacks.on_forecast(lead().forecast);
  lead().open_prefix();
}

BufferPtr Sweep::Impl::params_of(JointStep& joint, size_t lane) const {
  Backend& backend = model->impl().backend();
  const std::vector<float> params = joint.lane(lane).params();
  const auto count = static_cast<int64_t>(params.size());
  BufferPtr buffer = backend.allocate(DType::kF32, count);
  backend.upload(*buffer, DType::kF32, 0, count, params.data());
  return buffer;
}

namespace {

bool same_prompts(const std::vector<PromptAndAnswer>& a, const std::vector<PromptAndAnswer>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(),
      [](const PromptAndAnswer& x, const PromptAndAnswer& y) { return x.prompt == y.prompt; });
}

}  // namespace

Sweep::Impl::Samples Sweep::Impl::ask_before(JointStep& joint, const StopAsked& stop) {
  Samples samples;
  const auto start = std::chrono::steady_clock::now();
  double asked = 0;
  for (size_t k = 0; k < lanes.size(); ++k) {
    samples.prompts.push_back(lanes[k]->sample_prompts());
    // B is zero at the start, so all answer alike.
    const bool alike = k > 0 && same_prompts(samples.prompts[k], samples.prompts[0]) &&
                       lanes[k]->options.init_adapter.empty();
    samples.before.push_back(alike
                                 ? samples.before[0]
                                 : lanes[k]->answer(samples.prompts[k], params_of(joint, k), stop));
    if (!alike) ++asked;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  answer_seconds = seconds.count() * static_cast<double>(lanes.size()) / asked;
  return samples;
}

TrainResult Sweep::Impl::run_lane(JointStep& joint, size_t k,
                                  const std::vector<PromptAndAnswer>& prompts, RunFolder& folder,
                                  const SweepCallbacks& callbacks) {
  Trainer::Impl& lane = *lanes[k];
  RunSetup setup = lane.run_setup(lead().forecast);
  setup.answer_prompts = [&, k] {
    const std::vector<std::string> texts = lane.answer(prompts, params_of(joint, k));
    std::vector<EvalSample> samples;
    for (size_t i = 0; i < texts.size(); ++i) samples.push_back({prompts[i].words, texts[i]});
    return samples;
  };
  setup.peak_gflops = 0;  // of all lanes together, not of one
  setup.should_give_up = callbacks.should_give_up;
  const TrainCallbacks own = callbacks_of(k, callbacks);
  setup.hold_folder = [&] { folder.hold(own.on_message); };
  try {
    TrainRun run(joint.lane(k), std::move(setup));
    Watch watch(lane.options, resumes ? std::optional(run.first_update()) : std::nullopt,
                run.look_due());
    return run.run(watch.around(own));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kCancelled) throw;
    TrainResult nothing;
    nothing.interrupted = true;
    return nothing;
  }
}

// Of the rows that a loss of this run is of.
uint64_t Sweep::Impl::rows_key(const Trainer::Impl& lane, bool held_out) {
  if (!held_out) return lane.train.fingerprint();
  std::vector<int64_t> looked_at = valid_rows(*lane.valid, lane.options);
  std::sort(looked_at.begin(), looked_at.end());
  uint64_t key = lane.valid->fingerprint();
  for (int64_t row : looked_at) key = mix_key(key, static_cast<uint64_t>(row));
  return key;
}

void Sweep::Impl::rank(SweepResult& result, const SweepCallbacks& callbacks) const {
  auto failed = [](const SweepEntry& e) { return !e.error.empty() || e.result.steps == 0; };
  int64_t unmeasured = 0, finished = 0;
  // A loss in training is no measure beside held-out ones: it is lower for who has learned by rote.
  for (bool held_out : {true, false}) {
    std::map<uint64_t, int64_t> known;
    for (size_t k = 0; k < lanes.size(); ++k) {
      SweepEntry& e = result.entries[k];
      if (failed(e) || held_out == e.result.evals.empty()) continue;
      const auto [of, is_new] = known.emplace(rows_key(*lanes[k], held_out), result.row_sets + 1);
      if (is_new) ++result.row_sets;
      e.rows = of->second;
      e.rows_file = held_out ? lanes[k]->valid->file() : lanes[k]->train.file();
      ++finished;
      unmeasured += !held_out;
    }
  }
  auto measure = [&](const SweepEntry& e) {
    const double loss = e.result.evals.empty() ? e.result.final_loss : e.result.valid_loss;
    return std::tuple(failed(e), e.result.evals.empty(), !std::isfinite(loss),
                      std::isfinite(loss) ? loss : 0.0);
  };
  std::stable_sort(
      result.entries.begin(), result.entries.end(),
      [&](const SweepEntry& a, const SweepEntry& b) { return measure(a) < measure(b); });
  for (size_t i = 0; i < result.entries.size() && result.entries[i].rows > 0; ++i)
    result.entries[i].rank = static_cast<int64_t>(i) + 1;
  if (!callbacks.on_message) return;
  if (result.row_sets > 1)
    callbacks.on_message(cat("the adapters' losses are of ", result.row_sets,
                             " different sets of rows: only those of the same rows compare"));
  if (unmeasured > 0 && unmeasured < finished)
    callbacks.on_message(cat(unmeasured, unmeasured == 1 ? " adapter has" : " adapters have",
                             " no held-out rows: behind those that have, by the last loss in "
                             "training"));
}

SweepResult Sweep::Impl::collect(JointStep& joint, std::vector<TrainResult> results,
                                 const std::vector<std::exception_ptr>& errors,
                                 const Samples& samples, const SweepCallbacks& callbacks) {
  SweepResult result;
  for (size_t k = 0; k < lanes.size(); ++k) {
    SweepEntry entry;
    entry.name = names[k];
    entry.result = std::move(results[k]);
    if (errors[k]) {
      try {
        std::rethrow_exception(errors[k]);
      } catch (const Error& e) {
        entry.error = e.what();
      }
      entry.result.adapter_path = lanes[k]->options.adapter_path;
    } else if (!entry.result.adapter_path.empty()) {
      lanes[k]->finish(entry.result, samples.prompts[k], samples.before[k], params_of(joint, k),
                       callbacks.on_message);
    }
    result.interrupted |= entry.result.interrupted;
    result.seconds = std::max(result.seconds, entry.result.seconds);
    result.entries.push_back(std::move(entry));
  }
  rank(result, callbacks);
  result.peak_bytes = peak_memory_bytes();
  return result;
}

void Sweep::Impl::take_best(JointStep& joint, const SweepResult& result) {
  const SweepEntry& best = result.entries.front();
  if (!best.error.empty() || best.result.steps == 0) return;
  const size_t k =
      static_cast<size_t>(std::find(names.begin(), names.end(), best.name) - names.begin());
  Model::Impl& m = model->impl();
  m.adapter = lanes[k]->adapter;
  m.trained = nullptr;
  m.params = params_of(joint, k);
  m.adapter_path = lanes[k]->options.adapter_path;
  m.adapter_note.clear();
  ++m.revision;
}

SweepResult Sweep::run(const std::string& folder, const SweepCallbacks& callbacks) {
  Impl& s = *impl_;
  const EngineTurn turn(s.model->engine(), true);
  if (s.lead().has_run)
    fail(ErrorCode::kInvalidArgument,
         "this Sweep has run; make another one, with `resume` to go on");
  NewFolder made(folder);
  made.keep();
  const std::optional<FolderLock> held = s.lock(folder);
  std::vector<RunFolder> folders = s.begin(callbacks);
  SweepResult nothing;
  nothing.interrupted = true;
  auto given_up = [&] { return callbacks.should_give_up && callbacks.should_give_up(); };
  if (!s.start(callbacks) || given_up()) return nothing;
  JointStep joint(*s.lead().step);
  const Impl::Samples samples = s.ask_before(joint, callbacks.should_give_up);
  s.tell_forecast(callbacks);
  if (given_up()) return nothing;
  std::vector<TrainResult> results(s.lanes.size());
  s.lead().has_run = true;
  const std::vector<std::exception_ptr> errors = joint.run([&](size_t k) {
    results[k] = s.run_lane(joint, k, samples.prompts[k], folders[k], callbacks);
  });
  auto is_nothing = [](const TrainResult& r) { return r.interrupted && r.adapter_path.empty(); };
  if (std::all_of(results.begin(), results.end(), is_nothing)) {
    s.lead().has_run = false;
    return nothing;
  }
  SweepResult result = s.collect(joint, std::move(results), errors, samples, callbacks);
  s.take_best(joint, result);
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
    if (e.rank > 0) j.update({{"rank", e.rank}, {"rows", e.rows}, {"rows_file", e.rows_file}});
    if (!e.result.evals.empty()) j["valid_loss"] = e.result.valid_loss;
    if (!e.error.empty()) j["error"] = e.error;
    list.push_back(std::move(j));
  }
  make_folder(folder);
  const std::filesystem::path path = std::filesystem::path(folder) / "summary.json";
  write_file(path, dump_json({{"adapters", list},
                              {"row_sets", result.row_sets},
                              {"interrupted", result.interrupted},
                              {"seconds", result.seconds},
                              {"peak_bytes", result.peak_bytes}}) +
                       "\n");
  result.summary_path = path.string();
}

}  // namespace wick
