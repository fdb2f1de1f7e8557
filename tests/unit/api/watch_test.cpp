// SPDX-License-Identifier: Apache-2.0
#include "api/watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>
#include <thread>

#include "base/check.h"
#include "base/file.h"

namespace wick {
namespace {

class WatchTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              cat("wick_watch_", ::getpid(), "_",
                  testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    make_folder(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::filesystem::path folder_;
};

StepReport step(int64_t n, double loss) {
  StepReport r;
  r.step = n;
  r.steps = 10;
  r.loss = r.update_loss = loss;
  r.learning_rate = 1e-3;
  r.grad_norm = 0.5;
  r.tokens_per_second = 1000;
  return r;
}

uint32_t masked(const std::string& bytes) {
  // Bit by bit, so that it shares nothing with the writer's.
  uint32_t crc = ~0u;
  for (unsigned char c : bytes) {
    crc ^= c;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <typename T>
T fixed(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// A protocol buffer's fields, in order: number and the bytes of the value.
std::vector<std::pair<int, std::string>> fields(const std::string& m) {
  std::vector<std::pair<int, std::string>> found;
  size_t at = 0;
  auto varint = [&] {
    uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
      const auto c = static_cast<unsigned char>(m.at(at++));
      x |= static_cast<uint64_t>(c & 127) << shift;
      if (c < 128) return x;
    }
  };
  while (at < m.size()) {
    const uint64_t key = varint();
    size_t length = 0;
    if ((key & 7) == 0) {
      const uint64_t value = varint();
      found.emplace_back(static_cast<int>(key >> 3), std::to_string(value));
      continue;
    }
    length = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
    found.emplace_back(static_cast<int>(key >> 3), m.substr(at, length));
    at += length;
  }
  return found;
}

// "step tag" to value; `restarts`: the steps at which a run says that it goes on.
std::map<std::string, float> read_events(const std::filesystem::path& folder,
                                         std::vector<std::string>& versions,
                                         std::vector<int64_t>* restarts = nullptr) {
  std::map<std::string, float> scalars;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_NE(entry.path().filename().string().find("tfevents"), std::string::npos);
    const std::string all = read_file(entry.path());
    for (size_t at = 0; at < all.size();) {
      const auto length = fixed<uint64_t>(all, at);
      EXPECT_EQ(fixed<uint32_t>(all, at + 8), masked(all.substr(at, 8)));
      const std::string event = all.substr(at + 12, length);
      EXPECT_EQ(fixed<uint32_t>(all, at + 12 + length), masked(event));
      at += 16 + length;
      std::string number;
      for (const auto& [field, value] : fields(event)) {
        if (field == 2) number = value;
        if (field == 3) versions.push_back(value);
        if (field == 7 && restarts) restarts->push_back(std::stoll(number));
        if (field != 5) continue;
        for (const auto& [which, one] : fields(value)) {
          EXPECT_EQ(which, 1);
          const auto parts = fields(one);
          scalars[number + " " + parts.at(0).second] = fixed<float>(parts.at(1).second, 0);
        }
      }
    }
  }
  return scalars;
}

TEST_F(WatchTest, EventsCanBeReadBack) {
  TrainOptions o;
  o.tensorboard = path("logs");
  Watch watch(o, std::nullopt);
  const TrainCallbacks none;
  const TrainCallbacks c = watch.around(none);
  c.on_progress(step(1, 2.5));
  c.on_progress(step(300, 1.25));
  EvalReport e;
  e.step = 300;
  e.loss = 1.5;
  c.on_eval(e);
  std::vector<std::string> versions;
  const std::map<std::string, float> got = read_events(o.tensorboard, versions);
  EXPECT_EQ(versions, std::vector<std::string>{"brain.Event:2"});
  EXPECT_EQ(got.size(), 9u);
  EXPECT_EQ(got.at("1 train/loss"), 2.5f);
  EXPECT_EQ(got.at("300 train/loss"), 1.25f);
  EXPECT_EQ(got.at("300 valid/loss"), 1.5f);
  EXPECT_EQ(got.at("300 learning_rate"), 1e-3f);
  EXPECT_EQ(got.at("300 grad_norm"), 0.5f);
  EXPECT_EQ(got.at("300 tokens_per_second"), 1000.0f);
}

// Files are read in the order of their names.
TEST_F(WatchTest, EventsGoOnBehindAClockThatWasSetBack) {
  TrainOptions o;
  o.tensorboard = path("logs");
  make_folder(o.tensorboard);
  const std::string before = o.tensorboard + "/events.out.tfevents.9000000000.host.1.0";
  write_file(before, "");
  write_file(o.tensorboard + "/events.out.tfevents.99999999999999.host.1.0", "");
  write_file(o.tensorboard + "/events.out.tfevents.none", "");
  Watch watch(o, 5);
  EXPECT_TRUE(std::filesystem::exists(before));
  int behind = 0;
  for (const auto& entry : std::filesystem::directory_iterator(o.tensorboard))
    behind += entry.path().filename().string().starts_with("events.out.tfevents.9000000001.");
  EXPECT_EQ(behind, 1);
}

// The steps from which TensorBoard forgets what came before.
TEST_F(WatchTest, EventsOfAResumedRunTakeThePlaceOfThoseThatComeAgain) {
  auto restarts = [&](std::optional<int64_t> behind) {
    TrainOptions o;
    o.tensorboard = path(cat("logs", behind.value_or(-1)).c_str());
    Watch watch(o, behind);
    std::vector<std::string> versions;
    std::vector<int64_t> steps;
    read_events(o.tensorboard, versions, &steps);
    return steps;
  };
  EXPECT_EQ(restarts(std::nullopt), std::vector<int64_t>{});
  EXPECT_EQ(restarts(5), std::vector<int64_t>{6});
  // Killed before its first checkpoint.
  EXPECT_EQ(restarts(0), std::vector<int64_t>{0});
}

TEST_F(WatchTest, EventsOfPreferencesHaveTheirRewards) {
  TrainOptions o;
  o.tensorboard = path("logs");
  const double none = std::numeric_limits<double>::quiet_NaN();
  StepReport s = step(1, 0.5);
  s.preference = {.present = true,
                  .chosen = 0.75,
                  .rejected = -0.25,
                  .margin = 1,
                  .accuracy = 0.5,
                  .divergence = 0};
  EvalReport e;
  e.step = 1;
  e.preference = s.preference;
  // Of one answer and no pair.
  EvalReport half;
  half.step = 2;
  half.preference = {.present = true,
                     .chosen = 0.5,
                     .rejected = none,
                     .margin = none,
                     .accuracy = none,
                     .divergence = 0.125};
  const TrainCallbacks silent;
  {
    Watch watch(o, std::nullopt);
    watch.around(silent).on_progress(s);
    watch.around(silent).on_eval(e);
  }
  std::vector<std::string> versions;
  std::map<std::string, float> got = read_events(o.tensorboard, versions);
  for (const std::string at : {"1 train/", "1 valid/"}) {
    EXPECT_EQ(got.at(at + "rewards/chosen"), 0.75f);
    EXPECT_EQ(got.at(at + "rewards/rejected"), -0.25f);
    EXPECT_EQ(got.at(at + "rewards/margins"), 1.0f);
    EXPECT_EQ(got.at(at + "rewards/accuracies"), 0.5f);
    EXPECT_FALSE(got.contains(at + "kl"));
  }
  o.loss = "kto";
  o.tensorboard = path("kto");
  {
    Watch watch(o, std::nullopt);
    watch.around(silent).on_eval(half);
  }
  got = read_events(o.tensorboard, versions);
  EXPECT_EQ(got.size(), 3u);
  EXPECT_EQ(got.at("2 valid/rewards/chosen"), 0.5f);
  EXPECT_EQ(got.at("2 valid/kl"), 0.125f);
}

TEST_F(WatchTest, MetricsOfAResumedRunGoOn) {
  TrainOptions o;
  o.metrics = path("metrics.jsonl");
  const TrainCallbacks none;
  {
    Watch watch(o, std::nullopt);
    const TrainCallbacks c = watch.around(none);
    for (int i = 1; i <= 5; ++i) c.on_progress(step(i, 5.0 - i));
    c.on_save({4, "out"});
  }
  std::ofstream(o.metrics, std::ios::app) << "{\"event\":\"st";  // cut short by a kill
  {
    Watch watch(o, 4);
    watch.around(none).on_progress(step(5, 0.5));
  }
  std::istringstream lines(read_file(o.metrics));
  std::vector<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    const Json j = parse_json(line, o.metrics);
    seen.push_back(cat(j["event"].get<std::string>(), " ", j["step"].get<int64_t>()));
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"step 1", "step 2", "step 3", "step 4", "saved 4",
                                            "step 5"}));
}

// Lines of a run that was killed behind its checkpoint and before the line of it, and of one that
// was stopped at a look, went on with it and was killed.
TEST_F(WatchTest, MetricsOfAResumedRunHaveEachEventOnce) {
  auto seen = [&](bool saved, bool look_due) {
    TrainOptions o;
    o.metrics = path("metrics.jsonl");
    o.adapter_path = "out";
    const TrainCallbacks none;
    {
      Watch watch(o, std::nullopt);
      const TrainCallbacks c = watch.around(none);
      c.on_progress(step(4, 1));
      EvalReport e;
      e.step = 4;
      c.on_eval(e);
      if (saved) c.on_save({4, "out"});
      c.on_progress(step(5, 1));
    }
    { Watch watch(o, 4, look_due); }
    std::vector<std::string> lines;
    std::istringstream all(read_file(o.metrics));
    for (std::string line; std::getline(all, line);) {
      const Json j = parse_json(line, o.metrics);
      lines.push_back(cat(j["event"].get<std::string>(), " ", j["step"].get<int64_t>()));
      EXPECT_EQ(j.value("path", "out"), "out");
    }
    return lines;
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(seen(true, false), (Lines{"step 4", "eval 4", "saved 4"}));
  EXPECT_EQ(seen(false, false), (Lines{"step 4", "eval 4", "saved 4"}));
  EXPECT_EQ(seen(true, true), (Lines{"step 4", "saved 4"}));
}

TEST_F(WatchTest, TheHookGetsEachEvaluation) {
  TrainOptions o;
  o.hook = "cat >> " + path("seen");
  o.adapter_path = "out/lr=1e-4";  // of a sweep
  std::vector<std::string> warnings;
  TrainCallbacks c;
  c.on_message = [&](const std::string& line) { warnings.push_back(line); };
  EvalReport e;
  e.step = 7;
  e.loss = 1.5;
  e.samples = {{"why?", "so"}};
  Watch watch(o, std::nullopt);
  watch.around(c).on_eval(e);
  EXPECT_TRUE(warnings.empty());
  const Json seen = parse_json(read_file(path("seen")), "seen");
  EXPECT_EQ(seen["step"], 7);
  EXPECT_EQ(seen["samples"][0]["answer"], "so");
  EXPECT_EQ(seen["adapter_path"], "out/lr=1e-4");

  o.hook = "exit 3";
  watch.around(c).on_eval(e);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("returned 3"), std::string::npos) << warnings[0];
}

TEST_F(WatchTest, CommandsThatDoNotEndAreEnded) {
  // Longer than a test may take.
  EXPECT_NE(run_command("sleep 3000", "", 0.05).find("ended after"), std::string::npos);
  EXPECT_EQ(run_command("true", std::string(1 << 20, 'x'), 10), "");
  EXPECT_NE(run_command("kill -9 $$", "", 10).find("signal 9"), std::string::npos);
}

TEST_F(WatchTest, ACommandEndsWithTheRunThatIsToStop) {
  TrainOptions o;
  o.hook_seconds = 86400;
  // The sleeper is a child of the shell: it goes as well.
  o.hook = "sleep 86400 & echo $! > " + path("half") + "; mv " + path("half") + " " +
           path("sleeper") + "; wait";
  std::vector<std::string> warnings;
  TrainCallbacks c;
  c.on_message = [&](const std::string& line) { warnings.push_back(line); };
  c.should_stop = [&] { return std::filesystem::exists(path("sleeper")); };
  Watch(o, std::nullopt).around(c).on_eval({});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("ended, since the run is to stop"), std::string::npos) << warnings[0];
  const pid_t sleeper = std::stoi(read_file(path("sleeper")));
  auto lives = [&] {
    std::string words;
    std::ifstream stat(cat("/proc/", sleeper, "/stat"));
    std::getline(stat, words);
    return !words.empty() && words.find(") Z ") == std::string::npos;
  };
  for (int i = 0; i < 1000 && lives(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(lives());
}

}  // namespace
}  // namespace wick
