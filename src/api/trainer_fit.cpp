// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <set>

#include "api/report_text.h"
#include "api/trainer_impl.h"
#include "base/check.h"
#include "base/file.h"
#include "base/process.h"
#include "base/rng.h"
#include "train/checkpoint.h"

namespace wick {

namespace {

int64_t longest_row(const ExampleSet& set) {
  int64_t longest = 0;
  for (int64_t i = 0; i < set.size(); ++i)
    longest = std::max(longest, static_cast<int64_t>(set[i].ids.size()));
  return longest;
}

bool keeps_best(const TrainOptions& o) { return o.keep_best || o.early_stop > 0; }

PackLimits larger(PackLimits a, PackLimits b) {
  return {std::max(a.tokens, b.tokens), std::max(a.targets, b.targets)};
}

// What is free where kept rows lie.
int64_t keeping_memory_bytes(const Backend& backend) {
  const auto device = static_cast<int64_t>(backend.info().memory_bytes);
  const int64_t host = available_memory_bytes();
  return device > 0 ? std::min(device, host) : host;
}

}  // namespace

int64_t Trainer::Impl::positions() const {
  int64_t most = std::max(longest_row(train), loss_limits().tokens);
  if (valid) most = std::max(most, longest_row(*valid));
  for (const Impl* other : others) most = std::max(most, other->positions());
  return most;
}

StepOptions Trainer::Impl::step_options(const PackLimits& limits, int64_t recompute_blocks,
                                        ModelWeights* base) const {
  StepOptions s;
  s.limits = limits;
  s.positions = positions();
  s.recompute_blocks = recompute_blocks;
  s.split_prefix = forecast.prefix_blocks > 0;
  if (!forecast.prefix_on_disk) s.kept_tokens = forecast.prefix_bytes / stream_bytes();
  s.skips_rows = model->impl().backend().skips_rows();
  s.skip_below = static_cast<float>(options.skip_below);
  s.optimizer = optimizer_op(options.optimizer);
  s.loss = loss_maker(base ? *base : *model->impl().weights);
  return s;
}

std::unique_ptr<TrainStep> Trainer::Impl::make_step(const FitCandidate& size,
                                                    int64_t recompute_blocks) const {
  const Model::Impl& m = model->impl();
  StepOptions s = step_options(size.limits, recompute_blocks);
  s.largest_pack = size.largest_pack;
  return std::make_unique<TrainStep>(m.config, *m.weights, *trainable, s);
}

// A reference is asked about every row before the first update; otherwise rows that come after the
// last one need no room.
Order Trainer::Impl::order() const {
  const int64_t updates = options.loss == "sft" && !forecast.assumed_rows
                              ? count_updates(options, train.rows_per_epoch())
                              : 0;
  return Order(train, options.batch_size * options.grad_accumulation_steps, options.seed,
               options.shuffle, updates);
}

PackLimits Trainer::Impl::least_limits() const {
  PackLimits least = larger(smallest_limits(train, order()), loss_limits());
  if (valid) least = larger(least, smallest_limits(*valid));
  for (const Impl* other : others) least = larger(least, other->least_limits());
  return least;
}

// Of a run that may take as much memory as it wants.
PackLimits Trainer::Impl::free_limits() const {
  PackLimits limits = least_limits();
  if (options.packing) {
    const bool sized = options.loss == "sft" && others.empty();
    limits = larger(choose_limits(train, order(), model->impl().backend().tokens_at_once(), sized),
                    limits);
  }
  for (const Impl* other : others) limits = larger(limits, other->free_limits());
  return limits;
}

Fit Trainer::Impl::fit_within(int64_t memory_bytes) const {
  return fit_step(
      model->impl().backend(),
      [this](const FitCandidate& size, int64_t blocks) { return make_step(size, blocks); },
      fit_candidates(train, order(), free_limits(), least_limits(), options.packing),
      options.grad_checkpoint ? forecast.blocks : 0, forecast.blocks, memory_bytes);
}

// The step that fits --memory. Which rows form an update does not change.
void Trainer::Impl::choose_step() {
  const Model::Impl& m = model->impl();
  plan_prefix();
  const PackLimits free = free_limits();
  forecast.blocks = m.config.layers - first_trained_block(*trainable, m.config);
  const int64_t least_blocks = options.grad_checkpoint ? forecast.blocks : 0;
  free_step = make_step(fit_candidate(train, order(), free, options.packing), least_blocks);
  StepForecast f = free_step->forecast(m.backend());
  forecast.recompute_blocks = least_blocks;
  const int64_t kept = forecast.prefix_on_disk ? 0 : forecast.prefix_bytes;
  if (options.memory_bytes <= 0 || f.total() + kept <= options.memory_bytes) {
    step = std::move(free_step);
  } else {
    Fit fit = fit_within(options.memory_bytes - kept);
    if (!fit.fits)
      fail(ErrorCode::kOutOfMemory, "--memory ", report::bytes(options.memory_bytes),
           ": the smallest plan (recompute in every block, one row at a time) takes ",
           report::bytes_up(fit.memory.total() + kept), what_would_fit(fit, options.memory_bytes));
    step = std::move(fit.step);
    f = fit.memory;
    forecast.recompute_blocks = fit.recompute_blocks;
  }
  forecast.recompute = forecast.recompute_blocks > 0;
  add_sizes(kept);
  f = step->forecast(m.backend());
  if (free_step && others.empty())
    free_step->add_sizes(
        *m.weights,
        smaller_sizes(train, order(), free, free_step->micro_limits().tokens, options.packing));
  forecast.free_bytes = free_step ? free_step->forecast(m.backend()).total() : f.total();
  forecast.weights = f.weights;
  forecast.params = f.params;
  forecast.gradients = f.grads;
  forecast.moments = f.moments;
  forecast.feeds = f.feeds;
  forecast.arena = f.arena;
  const ArenaParts parts = arena_parts(step->micro_plan(), m.backend(), f.arena);
  forecast.activations = parts.activations;
  forecast.head = parts.head;
  forecast.workspace = parts.workspace;
  forecast.peak_bytes = f.total() + kept;
  const int64_t lanes = trainable->lane_count();
  forecast.tokens_per_step = lanes * step->micro_limits().tokens;
  forecast.targets_per_step = lanes * step->micro_limits().targets;
  forecast.gflop = step->micro_flops() / 1e9;
  forecast.updates = forecast.assumed_rows && options.iters <= 0
                         ? 1
                         : count_updates(options, train.rows_per_epoch());
  const DiskNeed need = saved_at_once();
  forecast.disk_bytes = need.kept;
  forecast.disk_peak_bytes = need.kept + need.beside;
  if (free_step) forecast.choice = describe_choice(free);
  for (Impl* run : runs()) run->answer_bytes = run->guessed_answer_bytes();
  counted_briefly = briefly_bytes();
  forecast.process_bytes = process_bytes();
  run_limits = step->limits();
  joint_limits = {lanes * run_limits.tokens, lanes * run_limits.targets};
  plan_order = describe_order();
}

// By what the checkpoint of another build is known: the plan without kept rows, which may change
// with the memory that is free and do not change bits.
Json Trainer::Impl::describe_order() const {
  const Model::Impl& m = model->impl();
  StepOptions options = step_options(step->limits(), forecast.recompute_blocks);
  options.split_prefix = false;
  options.largest_pack = step->micro_limits().tokens;
  const TrainStep whole(m.config, *m.weights, *trainable, options);
  const Plan& plan = whole.micro_plan();
  uint64_t kernels = 0;
  for (const Plan* p : {&plan, &whole.update_plan(), &whole.score_plan()})
    for (const Selection::Choice& choice : m.backend().select(*p).steps)
      kernels = mix_key(kernels, name_key(choice.kernel));
  uint64_t steps = name_key(print(plan));
  for (int64_t size : step->sizes()) steps = mix_key(steps, static_cast<uint64_t>(size));
  return {{"numerics", kNumerics},
          {"plan", cat(mix_key(steps, name_key(print(whole.update_plan()))))},
          {"kernels", cat(kernels)}};
}

// Of the rows in each pack of the first updates.
std::string Trainer::Impl::pack_key() const {
  constexpr int64_t kUpdates = 64;
  const Order order = this->order();
  uint64_t key = 0;
  for (int64_t u = 0; u < std::min(kUpdates, order.first_updates()); ++u)
    for (const Pack& pack :
         pack_rows(train, order.update(u), run_limits, options.seed, 0, options.packing)) {
      key = mix_key(key, pack.examples.size());
      for (int64_t row : pack.examples) key = mix_key(key, static_cast<uint64_t>(row));
    }
  return cat(key);
}

// What the process takes beside the plan: what it has now, its programs, copies of the numbers
// while they are saved or what answering takes, and the model inside the binary, whose pages stay
// once they are read.
int64_t Trainer::Impl::process_bytes() const {
  constexpr int64_t kCodeBytes = 1'500'000;  // that has not run yet, measured
  const Model::Impl& m = model->impl();
  const bool embedded = m.folder.folder.empty() && m.weights->files() && !m.weights->loaded();
  // What a probe has freed is not the run's.
  release_free_memory();
  const int64_t programs = kProgramStepBytes * step->program_steps();
  return current_memory_bytes() + kCodeBytes + briefly_bytes() + programs +
         (embedded ? static_cast<int64_t>(m.weights->files()->total_bytes()) : 0);
}

Trainer::Impl::OwnBytes Trainer::Impl::own_bytes() const {
  const Trainable own = adapter ? train_adapter(*adapter) : *trainable;
  const Op op = optimizer_op(options.optimizer);
  OwnBytes bytes;
  bytes.params = own.layout.size() * static_cast<int64_t>(sizeof(float));
  for (const OptimizerState& state : optimizer_states(op, update_groups(own, op)))
    bytes.states += static_cast<int64_t>(state.bytes());
  if (keeps_best(options) && valid) bytes.best = bytes.params;
  return bytes;
}

// Of the largest tensor while a result is written: its numbers, and of a whole model the same as
// they are saved; PiSSA's has its start beside it, in a vector that grows.
int64_t Trainer::Impl::written_bytes() const {
  const Trainable own = adapter ? train_adapter(*adapter) : *trainable;
  int64_t largest = 0;
  for (const ParamLayout::Entry& e : own.layout.entries())
    largest = std::max(largest, e.shape.elements());
  const bool pissa =
      adapter && !adapter->modules().empty() && adapter->modules().front().a0_offset >= 0;
  return (pissa ? 4 : adapter ? 1 : 2) * static_cast<int64_t>(sizeof(float)) * largest;
}

// Runs of a sweep save one after the other, and answer so; the best of each stays.
int64_t Trainer::Impl::copied_bytes() const {
  int64_t copied = 0, best = 0;
  for (const Impl* run : runs()) {
    const OwnBytes own = run->own_bytes();
    // A result is written after the optimizer's states, tensor by tensor.
    copied = std::max(copied, own.params + std::max(own.states, run->written_bytes()));
    best += own.best;
  }
  return copied + best;
}

int64_t Trainer::Impl::briefly_bytes() const {
  int64_t answered = 0, best = 0;
  for (const Impl* run : runs()) {
    const OwnBytes own = run->own_bytes();
    // An adapter of a sweep is asked with a copy of its numbers, which lie among the others'.
    answered = std::max(answered, run->answer_bytes + (others.empty() ? 0 : 2 * own.params));
    best += own.best;
  }
  return std::max(copied_bytes(), answered + best);
}

void Trainer::Impl::count_process() {
  const int64_t plan = forecast.peak_bytes;
  release_free_memory();
  // Reading a small model, or starting an adapter, may have taken more than running it will.
  int64_t seen = peak_memory_bytes() - plan;
  // A device that runs ahead has the plan in memory of its own.
  if (!model->impl().backend().runs_ahead()) {
    seen =
        std::max(seen, current_memory_bytes() + step->untouched_bytes() + briefly_bytes() - plan);
    // Nearly all code of a run that was tried has run: what was seen takes the place of the guess,
    // with room for what the end of the run brings.
    constexpr int64_t kEndBytes = 500'000;
    if (forecast.tried) forecast.process_bytes = std::min(forecast.process_bytes, seen + kEndBytes);
  }
  forecast.process_bytes = std::max(forecast.process_bytes, seen);
}

void Trainer::Impl::count_untried(double took) {
  // What was guessed of the answers is known now.
  forecast.process_bytes += briefly_bytes() + answer_code_bytes - counted_briefly;
  if (options.sample_at_evals) set_answer_seconds(took);
  count_process();
}

// What was chosen for --memory, in words. What it costs is forecast_time's.
std::string Trainer::Impl::describe_choice(const PackLimits& free) const {
  const PackLimits& now = step->limits();
  std::string what;
  if (forecast.recompute_blocks > 0)
    what = cat("recompute in ", forecast.recompute_blocks, " of ", forecast.blocks, " blocks");
  if (now.tokens != free.tokens)
    what += cat(what.empty() ? "" : ", ", "packs of ", report::count(now.tokens),
                " tokens instead of ", report::count(free.tokens));
  return what;
}

// Of one token between two blocks.
int64_t Trainer::Impl::stream_bytes() const {
  const Model::Impl& m = model->impl();
  return m.config.hidden * static_cast<int64_t>(dtype_bytes(m.weights->compute()));
}

// Of the rows that a run sees, and of those that are held out.
int64_t Trainer::Impl::prefix_tokens() const {
  int64_t tokens = 0;
  for (int64_t i = 0; valid && i < valid->size(); ++i) tokens += row_size((*valid)[i]).tokens;
  const Order order = this->order();
  if (order.first_updates() == order.updates_per_epoch()) {
    for (int64_t i = 0; i < train.size(); ++i) tokens += row_size(train[i]).tokens;
    return tokens;
  }
  std::set<int64_t> seen;
  for (int64_t u = 0; u < order.first_updates(); ++u)
    for (int64_t row : order.update(u))
      if (seen.insert(row).second) tokens += row_size(train[row]).tokens;
  return tokens;
}

// Whether the frozen blocks' outputs are kept, and where. It does not change a bit of the result.
void Trainer::Impl::plan_prefix() {
  const Model::Impl& m = model->impl();
  const std::string& where = options.prefix_cache;
  const int64_t below = first_trained_block(*trainable, m.config);
  if (where == "off" || below == 0 || forecast.assumed_rows) {
    if (where != "off" && where != "auto" && !forecast.assumed_rows)
      messages.push_back("--prefix-cache: the first block is trained, so there is nothing to keep");
    return;
  }
  const bool automatic = where == "auto";
  // Rows that are seen once are not worth keeping.
  if (automatic && count_updates(options, train.rows_per_epoch()) <= order().updates_per_epoch())
    return;
  int64_t tokens = 0;
  for (const Impl* run : runs_of_other_data()) tokens += run->prefix_tokens();
  const int64_t bytes = tokens * stream_bytes();
  const bool in_memory = automatic || where == "memory";
  int64_t budget = options.prefix_cache_bytes;
  if (budget <= 0)
    budget =
        in_memory ? keeping_memory_bytes(m.backend()) / 4 : std::numeric_limits<int64_t>::max();
  if (automatic && (bytes > budget || options.memory_bytes > 0)) return;
  if (bytes > budget)
    messages.push_back(cat("--prefix-cache: all rows take ", report::bytes(bytes), " and ",
                           report::bytes(budget), " may be kept; the rest is computed each time"));
  forecast.prefix_blocks = below;
  forecast.prefix_bytes = std::min(bytes, budget);
  forecast.prefix_on_disk = !in_memory;
}

// The number of a run's data among those of a sweep.
uint64_t Trainer::Impl::data_key() const {
  return mix_key(train.fingerprint(), valid ? valid->fingerprint() : 0);
}

// This run and those of a sweep whose rows no run before has.
std::vector<const Trainer::Impl*> Trainer::Impl::runs_of_other_data() const {
  std::vector<const Impl*> runs = {this};
  for (const Impl* other : others)
    if (std::none_of(runs.begin(), runs.end(),
                     [&](const Impl* run) { return run->data_key() == other->data_key(); }))
      runs.push_back(other);
  return runs;
}

// Of everything that a kept row's numbers depend on.
uint64_t Trainer::Impl::prefix_key() const {
  const Model::Impl& m = model->impl();
  const DeviceInfo device = m.backend().info();
  uint64_t key = name_key(cat(m.name(), "\n", m.folder.config.dump(), "\n", device.name, " ",
                              device.isa, " ", dtype_name(m.weights->compute())));
  auto add = [&](uint64_t word) { key = mix_key(key, word); };
  add(static_cast<uint64_t>(m.weights->dtype(weight_specs(m.config).front())));
  // Copies and archives may keep the time of a file, so its numbers are looked at, too.
  add(m.weights->fingerprint());
  add(static_cast<uint64_t>(kNumerics));
  add(name_key(get_string(plan_order, "kernels", "plan", "")));
  if (const SafetensorsSet* files = m.weights->files())
    for (const auto& file : files->files()) {
      std::error_code none;
      add(name_key(file->path().string()));
      add(std::filesystem::file_size(file->path(), none));
      add(static_cast<uint64_t>(
          std::filesystem::last_write_time(file->path(), none).time_since_epoch().count()));
    }
  for (const Impl* run : runs_of_other_data()) add(run->data_key());
  add(static_cast<uint64_t>(forecast.prefix_blocks));
  add(static_cast<uint64_t>(joint_limits.tokens));
  return key;
}

void Trainer::Impl::open_prefix() {
  if (!step->prefix()) return;
  const std::vector<const Impl*> runs = runs_of_other_data();
  auto data_of = [&](const Impl* run) {
    const auto same = [&](const Impl* r) { return r->data_key() == run->data_key(); };
    return static_cast<int32_t>(std::find_if(runs.begin(), runs.end(), same) - runs.begin());
  };
  std::vector<int32_t> data = {data_of(this)};
  for (const Impl* other : others) data.push_back(data_of(other));
  step->prefix()->set_data(std::move(data));
  if (!forecast.prefix_on_disk) return;
  make_folder(options.prefix_cache);
  step->prefix()->keep_in(
      std::make_shared<PrefixStore>(std::filesystem::path(options.prefix_cache) / kPrefixFile,
                                    prefix_key(), forecast.prefix_bytes));
}

void Trainer::Impl::check_device() {
  const Model::Impl& m = model->impl();
  const int64_t has = static_cast<int64_t>(m.backend().info().memory_bytes);
  const int64_t needs = forecast.peak_bytes - (m.weights->loaded() ? forecast.weights : 0);
  if (has == 0 || needs <= has) return;
  // A size that people can type, below what there is.
  constexpr int64_t kMega = 1000 * 1000;
  const int64_t usable = has / kMega * kMega + forecast.peak_bytes - needs;
  const Fit fit = fit_within(usable);
  fail(ErrorCode::kOutOfMemory, "this run takes ", report::bytes(needs), " and ",
       m.backend().info().name, " has ", report::bytes(has), " for it; ",
       fit.fits ? cat("--memory ", usable / kMega, "MB fits, with recompute in ",
                      fit.recompute_blocks, " of ", forecast.blocks, " blocks and packs of ",
                      report::count(fit.candidate.limits.tokens), " tokens")
                : cat("the smallest plan takes ", report::bytes_up(fit.memory.total()),
                      what_would_fit(fit, usable)));
}

}  // namespace wick
