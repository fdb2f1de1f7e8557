// SPDX-License-Identifier: Apache-2.0
// kill -9 at any moment, then --resume: the result has the bits of an undisturbed run.
// WICK_KILLS (10) says how often, WICK_DEVICE (cpu) where; tools/kill_test.sh sets them.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

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

class Kill : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(folder_.path("model"));
    write_tiny_data(folder_.path("data"), 40);
  }

  std::vector<std::string> words(const std::string& to, const char* save_every, bool resume) const {
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
                                    "--epochs",
                                    "12",
                                    "--save-every",
                                    save_every,
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

  // What an undisturbed run writes, and how long it takes.
  double run_whole(const char* save_every) {
    const Clock::time_point before = Clock::now();
    const CliResult r = wick(words("whole", save_every, false));
    EXPECT_EQ(r.code, 0) << r.err;
    return seconds_since(before);
  }

  void expect_same(const std::string& to) const {
    for (const char* file : {"/adapter_model.safetensors", "/best/adapter_model.safetensors"})
      EXPECT_TRUE(contents(folder_.path(to) + file) == contents(folder_.path("whole") + file))
          << file << " of " << to;
  }

  // Runs, each resumed after its kills until it ends, until there were enough kills. `kill_now`
  // waits for the moment and says whether to kill; false: the process has ended by itself.
  template <typename Wait>
  void kill_and_resume(const char* save_every, const Wait& wait_for_moment) {
    const int wanted = wanted_kills();
    int kills = 0, runs = 0, during_save = 0;
    while (kills < wanted) {
      const std::string to = "killed" + std::to_string(runs++);
      bool resume = false;
      for (bool ended = false; !ended;) {
        const bool last = kills >= wanted;
        const int64_t before = saved_step(to);
        const pid_t child = start(words(to, save_every, resume));
        int status = 0;
        if (!last && wait_for_moment(child, to)) {
          ::kill(child, SIGKILL);
          ::waitpid(child, &status, 0);
          if (WIFSIGNALED(status)) {
            ++kills;
            during_save += is_writing(to);
          }
        } else {
          ::waitpid(child, &status, 0);
        }
        ended = WIFEXITED(status);
        if (ended) {
          ASSERT_EQ(WEXITSTATUS(status), 0) << to;
        }
        // A checkpoint is never lost, whatever was being written.
        const int64_t now = saved_step(to);
        ASSERT_GE(now, before) << to;
        resume = std::filesystem::is_directory(folder_.path(to));
      }
      expect_same(to);
      std::filesystem::remove_all(folder_.path(to));
    }
    std::cout << kills << " kills in " << runs << " runs, " << during_save
              << " of them while a checkpoint was being written; every result has the bits of the "
                 "undisturbed run\n";
  }

  TempFolder folder_;
  Rng rng_{0x6b696c6c};
};

TEST_F(Kill, AtRandomMoments) {
  const double whole = run_whole("7");
  kill_and_resume("7", [&](pid_t, const std::string&) {
    std::this_thread::sleep_for(std::chrono::duration<double>(whole * rng_.uniform_double()));
    return true;
  });
}

TEST_F(Kill, WhileACheckpointIsBeingWritten) {
  run_whole("1");
  kill_and_resume("1", [&](pid_t child, const std::string& to) {
    // Some saves are let through, so that the run gets on.
    int64_t let_through = static_cast<int64_t>(rng_.below(20));
    for (bool writing = false;;) {
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid == child)
        return false;
      const bool now = is_writing(to);
      if (now && !writing && let_through-- == 0) return true;
      writing = now;
    }
  });
}

}  // namespace
}  // namespace wick::test
