// SPDX-License-Identifier: Apache-2.0
// What tests of whole runs share: a folder of its own for each test, rows, options for a short run
// of the embedded model, and an engine on the device that WICK_DEVICE names, else on two threads.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "wick/wick.h"

namespace wick {

inline EngineOptions test_device() {
  const char* name = std::getenv("WICK_DEVICE");
  return {.device = name ? name : "cpu", .threads = 2};
}

// The shortest conversation, where it does not matter what is learnt.
inline const std::string kChatRow =
    R"({"messages":[{"role":"user","content":"Say red"},{"role":"assistant","content":"red"}]})"
    "\n";

class RunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = cat("wick_", info->test_suite_name(), "_", info->name(), "_", ::getpid());
    std::replace(name.begin(), name.end(), '/', '_');
    root_ = std::filesystem::temp_directory_path() / name;
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write_data(const std::string& name, const std::string& train,
                  const std::string& valid) const {
    make_folder(root_ / name);
    write_file(root_ / name / "train.jsonl", train);
    write_file(root_ / name / "valid.jsonl", valid);
  }
  // Texts of mixed lengths: 4 words, 7, and so on up to `lengths` different ones. The first few are
  // the held-out rows as well.
  void write_texts(const std::string& name, int count, int lengths) const {
    std::string rows;
    for (int i = 0; i < count; ++i) {
      std::string words;
      for (int k = 0; k < 4 + 3 * (i % lengths); ++k) words += cat(" ", i * 31 + k);
      rows += cat(R"({"text":"row)", words, R"("})", "\n");
    }
    write_data(name, rows, rows.substr(0, rows.find('\n', 200) + 1));
  }

  // Of the folder data, with the result in `name`.
  TrainOptions run_options(const std::string& name) const {
    TrainOptions o;
    o.data = (root_ / "data").string();
    o.adapter_path = (root_ / name).string();
    o.rank = 4;
    o.batch_size = 4;
    o.learning_rate = 5e-3;
    o.steps_per_report = 1;
    return o;
  }
  std::string bytes(const std::string& file) const { return read_file(root_ / file); }

  std::filesystem::path root_;
  Engine engine_{test_device()};
};

// Runs f and gives the message of the Error it throws, "" if it throws none.
template <typename F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

inline std::vector<double> losses(const TrainResult& r) {
  std::vector<double> all;
  for (const StepReport& step : r.history) all.push_back(step.loss);
  return all;
}

}  // namespace wick
