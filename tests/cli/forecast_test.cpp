// SPDX-License-Identifier: Apache-2.0
// What is forecast before the first step against what the process really took.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "cli/cli.h"

namespace wick::test {
namespace {

// Rows of the embedded model's own words: some short, some that fill most of a pack.
std::string long_rows(int count) {
  std::string rows;
  for (int i = 0; i < count; ++i) {
    std::string text = "Row";
    for (int k = 0; k < 20 + 60 * (i % 4); ++k) text += " " + std::to_string((i * 37 + k) % 90);
    rows += "{\"text\": \"" + text + "\"}\n";
  }
  return rows;
}

class ForecastMemory
    : public testing::TestWithParam<std::tuple<const char*, const char*, const char*>> {};

TEST_P(ForecastMemory, IsWithinFivePercentOfTheProcess) {
  const auto [dtype, packing, optimizer] = GetParam();
  TempFolder folder;
  folder.write("data/train.jsonl", long_rows(16));
  const CliResult r =
      wick({"train", "--json", "--data", folder.path("data"), "--adapter-path", folder.path("out"),
            "--device", "cpu", "--threads", "2", "--iters", "4", "--max-seq-length", "512",
            "--dtype", dtype, packing, "--optimizer", optimizer});
  ASSERT_EQ(r.code, 0) << r.err;
  double forecast = 0, took = 0;
  for (const Json& line : r.lines()) {
    if (line["event"] == "forecast")
      forecast = line["peak_bytes"].get<double>() + line["process_bytes"].get<double>();
    if (line["event"] == "done") took = line["peak_bytes"].get<double>();
  }
  ASSERT_GT(took, 0);
  EXPECT_NEAR(forecast / took, 1.0, 0.05) << forecast << " forecast, " << took << " taken";
}

INSTANTIATE_TEST_SUITE_P(Runs, ForecastMemory,
                         testing::Values(std::tuple("bf16", "--packing", "adamw"),
                                         std::tuple("bf16", "--no-packing", "adamw"),
                                         std::tuple("f32", "--packing", "adamw"),
                                         std::tuple("bf16", "--packing", "muon")),
                         [](const auto& param) {
                           std::string name = std::get<0>(param.param) +
                                              std::string(std::get<1>(param.param)) + "_" +
                                              std::get<2>(param.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace wick::test
