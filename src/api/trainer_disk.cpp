// SPDX-License-Identifier: Apache-2.0
// What a run writes, and whether there is room for it.
#include <sys/stat.h>

#include <algorithm>

#include "api/report_text.h"
#include "api/trainer_impl.h"
#include "api/watch.h"
#include "base/check.h"
#include "base/file.h"
#include "base/path_status.h"
#include "base/process.h"
#include "model/save.h"
#include "train/checkpoint.h"

namespace wick {

namespace {

namespace fs = std::filesystem;

// report.html, settings, headers, what a file system adds.
constexpr int64_t kSmallFiles = 512 << 10;

int64_t file_bytes(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

// Files of an earlier run in this folder, which the new ones replace.
int64_t replaced_bytes(const fs::path& folder) {
  int64_t bytes = file_bytes(checkpoint_path(folder));
  for (const fs::path& at : {folder, folder / "best"})
    for (const char* name : {"adapter_model.safetensors", "model.safetensors"})
      bytes += file_bytes(at / name);
  return bytes;
}

// A folder that is there: this one, or the nearest above it.
fs::path existing_folder(const fs::path& folder) {
  std::error_code none;
  fs::path at = fs::absolute(folder, none);
  while (!fs::exists(at, none) && at.has_relative_path()) at = at.parent_path();
  return at;
}

bool on_one_disk(const fs::path& a, const fs::path& b) {
  struct stat of_a, of_b;
  return ::stat(a.c_str(), &of_a) == 0 && ::stat(b.c_str(), &of_b) == 0 &&
         of_a.st_dev == of_b.st_dev;
}

// What `room` bytes would hold of kept rows, as an option.
std::string smaller_prefix(int64_t room) {
  constexpr int64_t kMega = 1000 * 1000;
  return room >= kMega ? cat("--prefix-cache-size ", room / kMega, "MB") : "--prefix-cache memory";
}

}  // namespace

// Of one result as it lies on the disk.
int64_t Trainer::Impl::result_bytes(const std::string& save_dtype) const {
  const Model::Impl& m = model->impl();
  if (adapter) return adapter->saved_bytes();
  std::optional<DType> dtype;
  if (!save_dtype.empty()) dtype = parse_dtype(save_dtype);
  return saved_weight_bytes(m.config, *m.weights, dtype);
}

DiskNeed Trainer::Impl::disk_need(const TrainOptions& o) const {
  const auto element = static_cast<int64_t>(sizeof(float));
  const bool best = valid && (o.keep_best || o.early_stop > 0);
  const int64_t updates = count_updates(o, train.rows_per_epoch()), saves = count_saves(o, updates);
  DiskNeed need;
  need.result = result_bytes(o.save_dtype);
  // This run's alone: of a sweep the step has what all of its runs train.
  const Trainable own = adapter ? train_adapter(*adapter) : *trainable;
  const Op op = optimizer_op(o.optimizer);
  need.state = own.layout.size() * element * (best ? 2 : 1);
  for (const OptimizerState& state : optimizer_states(op, update_groups(own, op)))
    need.state += static_cast<int64_t>(state.bytes());
  need.kept = need.state + need.result * (1 + (best ? 1 : 0) + (o.save_numbered ? saves : 0));
  // A file is written beside the one that it replaces.
  const bool again = saves > 1 || file_bytes(checkpoint_path(o.adapter_path)) > 0;
  need.replaced = replaced_bytes(o.adapter_path);
  need.beside = again ? std::max(need.state, need.result) : best ? need.result : 0;
  return need;
}

DiskNeed Trainer::Impl::saved_at_once(const std::function<void(TrainOptions&)>& change) const {
  DiskNeed sum;
  for (const Impl* run : runs()) {
    TrainOptions changed = run->options;
    if (change) change(changed);
    const DiskNeed one = run->disk_need(changed);
    sum.state += one.state;
    sum.result += one.result;
    sum.kept += one.kept;
    sum.replaced += one.replaced;
    // Runs of a sweep save one after the other.
    sum.beside = std::max(sum.beside, one.beside);
  }
  return sum;
}

void Trainer::Impl::check_disk() const {
  const TrainOptions& o = options;
  const int64_t free_bytes = free_disk_bytes(o.adapter_path.c_str());
  // Kept rows are in a file of their own, of which a part may be there.
  int64_t rows = 0, rows_there = 0;
  if (forecast.prefix_on_disk) {
    const fs::path folder = existing_folder(o.prefix_cache);
    rows_there = file_bytes(fs::path(o.prefix_cache) / kPrefixFile);
    rows = std::max<int64_t>(0, forecast.prefix_bytes - rows_there);
    if (!on_one_disk(folder, o.adapter_path)) {
      if (const int64_t room = free_disk_bytes(folder.c_str()); room >= 0 && rows > room)
        fail(ErrorCode::kIo, "--prefix-cache ", o.prefix_cache, ": the disk has ",
             report::bytes(room), " free and the rows that are kept need ", report::bytes_up(rows),
             "; free some space, name a folder on another disk, or use ",
             smaller_prefix(room + rows_there));
      rows = 0;
    }
  }
  auto bytes_of = [](const DiskNeed& need) {
    return std::max<int64_t>(0, need.kept + need.beside + kSmallFiles - need.replaced);
  };
  const DiskNeed need = saved_at_once();
  if (free_bytes < 0 || bytes_of(need) + rows <= free_bytes) return;
  std::string fits;
  auto consider = [&](const char* what, bool applies, const auto& change) {
    if (!applies) return;
    if (const int64_t bytes = bytes_of(saved_at_once(change)) + rows; bytes <= free_bytes)
      fits +=
          cat(fits.empty() ? "; " : ", ", what, " takes ", report::bytes_up(bytes), " and fits");
  };
  const std::string once = cat("--save-every ", forecast.updates, " (one checkpoint, at the end)");
  consider(once.c_str(), need.beside > 0 && count_saves(o, forecast.updates) > 1,
           [this](TrainOptions& c) { c.save_every = forecast.updates; });
  consider("a run without --save-numbered", o.save_numbered,
           [](TrainOptions& c) { c.save_numbered = false; });
  consider("a run without --keep-best", o.keep_best && o.early_stop == 0,
           [](TrainOptions& c) { c.keep_best = false; });
  consider("--save-dtype bf16", !adapter && o.save_dtype.empty(),
           [](TrainOptions& c) { c.save_dtype = "bf16"; });
  if (const int64_t room = free_bytes - bytes_of(need); rows > 0 && room >= 0)
    fits += cat(fits.empty() ? "; " : ", ", smaller_prefix(room + rows_there), " fits");
  fail(ErrorCode::kIo, o.adapter_path, ": the disk has ", report::bytes(free_bytes),
       " free and the run needs ", report::bytes_up(bytes_of(need) + rows), ": a checkpoint of ",
       report::bytes(need.state), ", a result of ", report::bytes(need.result),
       need.kept > need.state + need.result ? ", the other results that are kept" : "",
       rows > 0 ? cat(", rows of --prefix-cache of ", report::bytes(rows)) : "",
       need.beside > 0 ? ", and room for a new file beside the one that it replaces" : "", fits,
       "; free some space, or name a folder on another disk");
}

namespace {

bool has_model(const fs::path& folder) {
  const std::vector<fs::path> files = files_of_model(folder);
  return std::find(files.begin(), files.end(), "config.json") != files.end();
}

bool was_full_training(const fs::path& folder) {
  try {
    const std::optional<Json> run = load_checkpoint_run(folder);
    return run && get_string(*run, "fine_tune_type", folder.string(), "") == "full";
  } catch (const Error&) {
    return false;  // a damaged one hinders a resume only
  }
}

}  // namespace

// A full training leaves a model, one of adapters an adapter: whoever loads a folder with both of
// them takes one or the other. What an earlier run left is replaced, what others put there stays.
void Trainer::Impl::look_at_folder() {
  const std::string& folder = options.adapter_path;
  if (!has_model(folder)) return;
  std::error_code none;
  for (const std::string& read : {model->info().path, options.reference, options.teacher})
    if (fs::equivalent(read, folder, none)) return;
  replaces_model = was_full_training(folder);
  if (!adapter) return;
  messages.push_back(
      replaces_model
          ? cat(folder, " has the model that a full training left there; the adapter ",
                "takes its place when it is saved")
          : cat(folder, " has a model (config.json), which stays beside the adapter: ", "--model ",
                folder, " runs it without"));
}

// Found out now rather than after an hour.
RunFolder Trainer::Impl::check_folder() const {
  if (options.data.empty())
    fail(ErrorCode::kInvalidArgument,
         "--data is missing: a folder with train.jsonl, or a JSON-lines file");
  if (options.resume && !is_folder_at(options.adapter_path))
    fail(ErrorCode::kNotFound, options.adapter_path,
         ": no such folder to resume from; leave --resume out to start from the beginning");
  std::error_code none;
  if (!adapter && std::filesystem::equivalent(model->info().path, options.adapter_path, none))
    fail(ErrorCode::kInvalidArgument, "--adapter-path ", options.adapter_path,
         " is the model's own folder, which would be overwritten; name another");
  if (!adapter && !replaces_model && has_model(options.adapter_path))
    fail(ErrorCode::kInvalidArgument, "--adapter-path ", options.adapter_path,
         " has a model that no full training has left there, and it would be overwritten; name "
         "another folder");
  check_metrics(options.metrics);
  NewFolder folder(options.adapter_path);
  folder.keep();
  FolderLock lock(options.adapter_path);
  check_disk();
  write_file(std::filesystem::path(options.adapter_path) / ".wick", "");
  std::filesystem::remove(std::filesystem::path(options.adapter_path) / ".wick");
  return {std::move(folder), std::move(lock), options.adapter_path};
}

void RunFolder::hold(const std::function<void(const std::string&)>& say) {
  if (lock.renew() && say)
    say(cat("warning: ", path, " was removed or moved while the run went on; it is made anew"));
}

}  // namespace wick
