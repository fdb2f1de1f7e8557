// SPDX-License-Identifier: Apache-2.0
#include "api/watch.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/check.h"
#include "base/file.h"
#include "base/path_status.h"

extern char** environ;

namespace wick {

namespace {

void add_preference(Json& event, const PreferenceReport& p) {
  if (!p.present) return;
  event["rewards/chosen"] = p.chosen;
  event["rewards/rejected"] = p.rejected;
  event["accuracy"] = p.accuracy;
  event["margin"] = p.margin;
  event["kl"] = p.divergence;
}

}  // namespace

Json step_event(const StepReport& r) {
  Json event = {{"event", "step"},
                {"step", r.step},
                {"steps", r.steps},
                {"epoch", r.epoch},
                {"loss", r.loss},
                {"update_loss", r.update_loss},
                {"learning_rate", r.learning_rate},
                {"grad_norm", r.grad_norm},
                {"tokens", r.tokens},
                {"trained_tokens", r.trained_tokens},
                {"tokens_per_second", r.tokens_per_second},
                {"utilisation", r.utilisation},
                {"peak_bytes", r.peak_bytes},
                {"forecast_bytes", r.forecast_bytes},
                {"seconds", r.seconds},
                {"seconds_left", r.seconds_left}};
  add_preference(event, r.preference);
  return event;
}

Json eval_event(const EvalReport& r) {
  Json event = {{"event", "eval"}, {"step", r.step}, {"loss", r.loss}};
  if (!r.preference.present) event["perplexity"] = r.perplexity;
  event["tokens"] = r.tokens;
  event["rows"] = r.rows;
  event["best"] = r.best;
  for (const EvalSample& s : r.samples)
    event["samples"].push_back(Json{{"prompt", s.prompt}, {"answer", s.answer}});
  add_preference(event, r.preference);
  return event;
}

Json save_event(const SaveReport& r) {
  return {{"event", "saved"}, {"step", r.step}, {"path", r.path}};
}

namespace {

// What every line of metrics begins with, one that a kill cut short as well.
constexpr std::string_view kEventBegins = "{\"event\":";

// The lines of an older file that a run resumed behind that update does not write again. A last
// line that a kill cut short is dropped with them.
std::string earlier_lines(const TrainOptions& options, int64_t behind, bool look_due) {
  if (behind == 0 || !path_exists(options.metrics)) return {};
  std::istringstream lines(read_file(options.metrics));
  std::string kept, line;
  bool has_save = false;
  while (std::getline(lines, line)) {
    const Json event = Json::parse(line, nullptr, false);
    if (event.is_discarded() || !event.is_object()) continue;
    const Json* step = find_member(event, "step");
    if (step && step->is_number_integer()) {
      const int64_t at = step->get<int64_t>();
      const Json kind = event.value("event", Json());
      if (at > behind || (at == behind && look_due && kind == "eval")) continue;
      has_save = has_save || (at == behind && kind == "saved");
    }
    kept += line + "\n";
  }
  if (!has_save && !kept.empty())
    kept += dump_json(save_event({behind, options.adapter_path})) + "\n";
  return kept;
}

}  // namespace

void check_metrics(const std::string& path) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none))
    fail(ErrorCode::kInvalidArgument, "--metrics ", path, ": is a folder; name a file");
  if (!std::filesystem::is_regular_file(path, none)) return;
  std::ifstream file(path, std::ios::binary);
  std::string begin(kEventBegins.size(), '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(file.gcount()));
  if (!kEventBegins.starts_with(begin))
    fail(ErrorCode::kInvalidArgument, "--metrics ", path,
         ": is a file that no run has written, and its lines would be lost; name another");
}

Watch::Watch(const TrainOptions& options, std::optional<int64_t> behind, bool look_due)
    : options_(options) {
  if (!options.metrics.empty()) {
    const std::filesystem::path path = options.metrics;
    if (path.has_parent_path()) make_folder(path.parent_path());
    // A pipe, a device or a link such as /dev/stdout takes lines as they come, and is not replaced.
    std::error_code none;
    const auto kind = std::filesystem::symlink_status(path, none).type();
    if (kind == std::filesystem::file_type::regular ||
        kind == std::filesystem::file_type::not_found)
      write_file(path, earlier_lines(options, behind.value_or(0), look_due));
    metrics_.open(path, std::ios::app);
    if (!metrics_)
      fail(ErrorCode::kIo, options.metrics, ": cannot be written: ", std::strerror(errno));
  }
  if (!options.tensorboard.empty())
    board_ = std::make_unique<EventFile>(options.tensorboard, behind);
}

// Under TRL's names, behind what its logs have before them.
void Watch::add_rewards(const std::string& split, const PreferenceReport& p,
                        std::vector<EventFile::Scalar>& scalars) const {
  if (!p.present) return;
  const EventFile::Scalar all[] = {{split + "/rewards/chosen", p.chosen},
                                   {split + "/rewards/rejected", p.rejected},
                                   {split + "/rewards/margins", p.margin},
                                   {split + "/rewards/accuracies", p.accuracy}};
  for (const EventFile::Scalar& one : all)
    if (!std::isnan(one.second)) scalars.push_back(one);
  if (options_.loss == "kto") scalars.emplace_back(split + "/kl", p.divergence);
}

void Watch::line(const Json& event) {
  if (!metrics_.is_open()) return;
  metrics_ << dump_json(event) << std::endl;
  if (!metrics_) fail(ErrorCode::kIo, options_.metrics, ": cannot be written; is the disk full?");
}

void Watch::run_hook(const EvalReport& report, const TrainCallbacks& callbacks) const {
  if (options_.hook.empty()) return;
  auto stop = [&] {
    return (callbacks.should_stop && callbacks.should_stop()) ||
           (callbacks.should_give_up && callbacks.should_give_up());
  };
  // Adapters of a sweep have the same steps.
  Json event = eval_event(report);
  event["adapter_path"] = options_.adapter_path;
  const std::string wrong =
      run_command(options_.hook, dump_json(event) + "\n", options_.hook_seconds, stop);
  if (!wrong.empty() && callbacks.on_message)
    callbacks.on_message(cat("warning: --hook ", options_.hook, ": ", wrong));
}

TrainCallbacks Watch::around(const TrainCallbacks& callbacks) {
  TrainCallbacks made = callbacks;
  made.on_progress = [this, &callbacks](const StepReport& r) {
    line(step_event(r));
    if (board_) {
      std::vector<EventFile::Scalar> scalars = {{"train/loss", r.update_loss},
                                                {"learning_rate", r.learning_rate},
                                                {"grad_norm", r.grad_norm},
                                                {"tokens_per_second", r.tokens_per_second}};
      add_rewards("train", r.preference, scalars);
      board_->add(r.step, scalars);
    }
    if (callbacks.on_progress) callbacks.on_progress(r);
  };
  made.on_eval = [this, &callbacks](const EvalReport& r) {
    line(eval_event(r));
    if (board_) {
      std::vector<EventFile::Scalar> scalars = {{"valid/loss", r.loss}};
      add_rewards("valid", r.preference, scalars);
      board_->add(r.step, scalars);
    }
    if (callbacks.on_eval) callbacks.on_eval(r);
    run_hook(r, callbacks);
  };
  made.on_save = [this, &callbacks](const SaveReport& r) {
    line(save_event(r));
    if (callbacks.on_save) callbacks.on_save(r);
  };
  return made;
}

std::string run_command(const std::string& command, const std::string& input, double seconds,
                        const std::function<bool()>& should_stop) {
  // A file and no pipe: a command that does not read must not stop the run.
  std::FILE* file = std::tmpfile();
  if (!file) return cat("no temporary file: ", std::strerror(errno));
  std::fwrite(input.data(), 1, input.size(), file);
  std::rewind(file);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ::fileno(file), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::string shell = "sh", flag = "-c", words = command;
  char* arguments[] = {shell.data(), flag.data(), words.data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawn(&child, "/bin/sh", &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  std::fclose(file);
  if (error != 0) return cat("cannot be started: ", std::strerror(error));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int status = 0;
  for (pid_t done = 0; done == 0;) {
    done = ::waitpid(child, &status, WNOHANG);
    if (done < 0) return cat("cannot be waited for: ", std::strerror(errno));
    if (done > 0) break;
    const bool late = std::chrono::steady_clock::now() > end;
    if (late || (should_stop && should_stop())) {
      ::kill(-child, SIGKILL);
      ::waitpid(child, &status, 0);
      return late ? cat("ended after ", seconds, " seconds") : "ended, since the run is to stop";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (WIFSIGNALED(status)) return cat("ended by signal ", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return cat("returned ", WEXITSTATUS(status));
  return {};
}

}  // namespace wick
