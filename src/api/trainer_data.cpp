// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <ctime>
#include <limits>

#include "api/report_text.h"
#include "api/trainer_impl.h"
#include "base/check.h"
#include "train/checkpoint.h"
#include "train/run.h"

namespace wick {

namespace {

std::string today() {
  std::time_t now = std::time(nullptr);
  std::tm day = {};
  localtime_r(&now, &day);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &day);
  return text;
}

// What templates take for today is fixed for a whole run, also when it is resumed on another day:
// else its rows would change.
std::string date_of_run(const TrainOptions& options) {
  if (!options.dataset.date.empty()) return options.dataset.date;
  if (options.resume)
    if (std::optional<Json> run = load_checkpoint_run(options.adapter_path))
      return get_string(*run, "date", checkpoint_path(options.adapter_path).string(), today());
  return today();
}

}  // namespace

void Trainer::Impl::load_data() {
  const Model::Impl& m = model->impl();
  if (options.data.empty()) return assume_rows();
  const ChatTemplate* chat = m.chat_template ? &*m.chat_template : nullptr;
  options.dataset.date = date_of_run(options);
  DataOptions d = data_options(options.dataset);
  // Which rows --val-split holds out is known only when all are read.
  d.keep_prompts =
      options.val_split > 0 ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(kSamples);
  d.pairs = pair_rows();
  if (d.max_seq_length > m.config.max_positions) {
    d.max_seq_length = m.config.max_positions;
    messages.push_back(
        cat("rows are limited to the model's context of ", d.max_seq_length, " tokens"));
  }
  if (options.data_sources.empty()) options.data_sources = {{options.data, 1}};
  const std::vector<DataSource>& sources = options.data_sources;
  train = ExampleSet::load(sources, "train", m.words(), chat, d);
  if (Dataset::has_split(sources, "valid")) {
    valid = ExampleSet::load(sources, "valid", m.words(), chat, d);
    if (options.val_split > 0)
      messages.push_back(cat("--val-split is not used: ", valid->file(), " is held out"));
  } else if (options.val_split > 0) {
    valid = train.hold_out(options.val_split, options.seed);
    messages.push_back(cat(valid->size(), " of ", valid->size() + train.size(),
                           " rows are held out (--val-split)"));
  }
  for (const DataPart& part : train.parts())
    if (part.end > part.begin && part.rows_per_epoch() == 0)
      fail(ErrorCode::kInvalidArgument, part.file, ": a weight of ", report::number(part.weight),
           " takes none of its ", part.end - part.begin,
           " rows in an epoch; give a higher one, or leave the data set out");
  if (!valid) {
    const std::string wanted = "there are no held-out rows; add a valid file, or --val-split 0.1";
    if (options.early_stop > 0 || options.keep_best)
      fail(ErrorCode::kInvalidArgument, options.early_stop > 0 ? "--early-stop" : "--keep-best",
           " goes by the held-out loss, and ", wanted);
    if (!options.hook.empty())
      messages.push_back(cat("--hook is called at each look at held-out rows, and ", wanted));
  } else if (options.early_stop > 0) {
    // The look before the first update is what the others are compared with.
    const int64_t updates = count_updates(options, train.rows_per_epoch()),
                  looks = count_evals(options, updates) - 2;
    if (looks < options.early_stop)
      messages.push_back(cat("--early-stop ", options.early_stop, " never stops this run: of its ",
                             report::count(updates), " updates --steps-per-eval ",
                             options.steps_per_eval, " looks after ", looks,
                             " before the end; look more often"));
  }
  for (const ExampleSet* set : {&train, valid ? &*valid : nullptr}) {
    if (!set) continue;
    constexpr size_t kNamed = 5;
    const std::vector<DataIssue>& issues = set->issues();
    for (size_t i = 0; i < std::min(issues.size(), kNamed); ++i)
      // What is about a folder is found with each of its splits.
      if (std::find(messages.begin(), messages.end(), issues[i].str()) == messages.end())
        messages.push_back(issues[i].str());
    if (issues.size() > kNamed)
      messages.push_back(cat(set->file(), ": ", issues.size() - kNamed,
                             " more rows like that; wick data shows them all"));
  }
}

// Programs for packs that are far from full, and what share of all slots is used then.
void Trainer::Impl::add_sizes(int64_t kept_bytes) {
  const Order order = this->order();
  const Model::Impl& m = model->impl();
  if (others.empty())
    step->add_sizes(*m.weights, smaller_sizes(train, order, step->limits(),
                                              step->micro_limits().tokens, options.packing));
  if (options.memory_bytes > 0 &&
      step->forecast(m.backend()).total() + kept_bytes > options.memory_bytes)
    step->clear_sizes();
  std::vector<int64_t> sizes = step->sizes();
  sizes.push_back(step->micro_limits().tokens);
  const SlotCount slots = count_slots(train, order, step->limits(), sizes, options.packing);
  auto fill = [&](int64_t all) {
    return static_cast<double>(slots.useful) / static_cast<double>(std::max<int64_t>(1, all));
  };
  forecast.packed_fill = fill(slots.packed);
  forecast.padded_fill = fill(slots.padded);
  forecast.sorted_fill = fill(slots.sorted);
}

// One update's worth of rows for a forecast without data.
void Trainer::Impl::assume_rows() {
  const int64_t length =
      std::min(options.dataset.max_seq_length, model->impl().config.max_positions);
  Example row;
  row.ids.assign(static_cast<size_t>(std::max<int64_t>(2, length)), 0);
  row.trained.assign(row.ids.size(), 1);
  row.trained[0] = 0;
  if (pair_rows() != PairRows::kNone) {
    row.second = static_cast<int64_t>(row.ids.size());
    row.ids.insert(row.ids.end(), row.ids.begin(), row.ids.begin() + row.second);
    row.trained.insert(row.trained.end(), row.trained.begin(), row.trained.begin() + row.second);
  }
  constexpr int64_t kMostAssumed = 4096;
  const int64_t rows = options.batch_size * options.grad_accumulation_steps;
  if (rows > kMostAssumed)
    fail(ErrorCode::kInvalidArgument, "an update of ", report::count(rows),
         " rows: without --data at most ", report::count(kMostAssumed), " are assumed");
  train = ExampleSet::from_examples(std::vector<Example>(static_cast<size_t>(rows), row),
                                    "assumed rows");
  forecast.assumed_rows = true;
}

}  // namespace wick
