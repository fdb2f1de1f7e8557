// SPDX-License-Identifier: Apache-2.0
// kill -9 at any moment, then --resume: the result has the bits of an undisturbed run.
// WICK_KILLS (10) says how often, WICK_DEVICE (cpu) where; tools/kill_test.sh sets them.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "base/rng.h"
#include "cli/cli.h"
#include "io/safetensors.h"

extern char** environ;

namespace wick::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int wanted_kills() {
  const char* text = std::getenv("WICK_KILLS");
  return text ? std::atoi(text) : 10;
}

// All kills hit one run, so its length goes with their number.
constexpr int64_t kUpdatesPerKill = 16;

class Kill : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(folder_.path("model"));
    write_tiny_data(folder_.path("data"), 40);
  }

  std::vector<std::string> words(const std::string& to, bool resume) const {
    const char* device = std::getenv("WICK_DEVICE");
    std::vector<std::string> all = {"train",
                                    "--model",
                                    folder_.path("model"),
                                    "--data",
                                    folder_.path("data"),
                                    "--adapter-path",
                                    folder_.path(to),
                                    "--device",
                                    device ? device : "cpu",
                                    "--iters",
                                    std::to_string(updates_),
                                    "--save-every",
                                    std::to_string(save_every_),
                                    "--steps-per-eval",
                                    "15",
                                    "--keep-best",
                                    "--lora-dropout",
                                    "0.1",
                                    "--date",
                                    "2026-01-02",
                                    "--quiet"};
    if (resume) all.push_back("--resume");
    return all;
  }

  pid_t start(const std::vector<std::string>& all) const {
    std::vector<std::string> copies = all;
    copies.insert(copies.begin(), WICK_BINARY);
    std::vector<char*> arguments;
    for (std::string& word : copies) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, WICK_BINARY, nullptr, nullptr, arguments.data(), environ), 0);
    return child;
  }

  int64_t saved_step(const std::string& to) const {
    const std::string file = folder_.path(to) + "/training_state.safetensors";
    if (!std::filesystem::exists(file)) return 0;
    return std::stoll(SafetensorsFile(file).metadata().at("step"));
  }

  bool is_writing(const std::string& to) const {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path(to), error))
      if (entry.path().filename().string().rfind("training_state.safetensors.tmp", 0) == 0)
        return true;
    return false;
  }

  bool has_ended(pid_t child) const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == child;
  }

  // What an undisturbed run writes; how long it takes to its first checkpoint, and per update.
  void run_whole() {
    const Clock::time_point before = Clock::now();
    const pid_t child = start(words("whole", false));
    while (!has_ended(child)) {
      if (first_save_ == 0 && saved_step("whole") > 0) first_save_ = seconds_since(before);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    per_update_ = (seconds_since(before) - first_save_) /
                  static_cast<double>(std::max<int64_t>(1, updates_ - save_every_));
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }

  void expect_same(const std::string& to) const {
    for (const char* file : {"/adapter_model.safetensors", "/best/adapter_model.safetensors"})
      EXPECT_TRUE(contents(folder_.path(to) + file) == contents(folder_.path("whole") + file))
          << file << " of " << to;
  }

  // One run, killed as often as wanted, resumed each time. `wait_for_moment(child, to, share)`
  // returns when to kill; once the run has saved `share` updates, that is at the next occasion, so
  // that it does not end before its last kill. With `in_saves` only kills that left a half-written
  // checkpoint behind are counted. A run that ends before its last kill all the same, because the
  // machine got faster meanwhile, is followed by one of twice the length.
  template <typename Wait>
  void kill_and_resume(int64_t save_every, bool in_saves, const Wait& wait_for_moment) {
    save_every_ = save_every;
    int64_t per_kill = kUpdatesPerKill;
    while (!HasFatalFailure() && !kill_one_run(per_kill, in_saves, wait_for_moment)) {
      per_kill *= 2;
      ASSERT_LE(per_kill, 64 * kUpdatesPerKill) << "the run ended before its last kill";
    }
  }

  template <typename Wait>
  bool kill_one_run(int64_t per_kill, bool in_saves, const Wait& wait_for_moment) {
    const int wanted = wanted_kills();
    const std::string to = "killed";
    for (const std::string& folder : {to, std::string("whole")})
      std::filesystem::remove_all(folder_.path(folder));
    updates_ = per_kill * (wanted + 1);
    run_whole();
    int counted = 0, kills = 0, during_save = 0, before_a_save = 0;
    bool ended = false, resume = false;
    while (!ended) {
      const int64_t before = saved_step(to);
      const pid_t child = start(words(to, resume));
      if (counted < wanted) {
        wait_for_moment(child, to, per_kill * (counted + 1));
        ::kill(child, SIGKILL);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      ended = WIFEXITED(status);
      if (ended) {
        EXPECT_EQ(WEXITSTATUS(status), 0) << to;
      }
      // A checkpoint is never lost, whatever was being written.
      const int64_t now = saved_step(to);
      EXPECT_GE(now, before) << to;
      if (HasFailure()) return true;
      if (!ended) {
        ++kills;
        during_save += is_writing(to);
        before_a_save += now == before;
        counted = in_saves ? during_save : kills;
      }
      resume = std::filesystem::is_directory(folder_.path(to));
    }
    EXPECT_EQ(saved_step(to), updates_);
    expect_same(to);
    std::cout << kills << " kills in one run of " << updates_ << " updates, " << during_save
              << " while a checkpoint was being written, " << before_a_save
              << " before it had saved anything since it was resumed\n";
    return counted == wanted;
  }

  TempFolder folder_;
  Rng rng_{0x6b696c6c};
  int64_t updates_ = 0, save_every_ = 1;
  double first_save_ = 0, per_update_ = 0;
};

TEST_F(Kill, AtRandomMoments) {
  kill_and_resume(7, false, [&](pid_t child, const std::string& to, int64_t share) {
    // One in four while it starts; the others once it has saved something, so that it gets on.
    const bool early = rng_.below(4) == 0;
    const double after = static_cast<double>(kUpdatesPerKill) * per_update_;
    double moment = early ? first_save_ * rng_.uniform_double() : first_save_ + 3600;
    const int64_t from = saved_step(to);
    const Clock::time_point before = Clock::now();
    for (bool reached = early; seconds_since(before) < moment && !has_ended(child);) {
      const int64_t now = reached ? from : saved_step(to);
      if (!reached && (now > from || now >= share)) {
        reached = true;
        moment = seconds_since(before) + after * rng_.uniform_double();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
}

TEST_F(Kill, WhileACheckpointIsBeingWritten) {
  kill_and_resume(1, true, [&](pid_t child, const std::string& to, int64_t share) {
    // Some saves are let through, so that the run gets on.
    const auto some = static_cast<int64_t>(rng_.below(2 * kUpdatesPerKill));
    const int64_t from = std::min(saved_step(to) + some, share);
    for (bool reached = false; !has_ended(child);) {
      reached = reached || saved_step(to) >= from;
      if (reached && is_writing(to)) return;
    }
  });
}

}  // namespace
}  // namespace wick::test
