// SPDX-License-Identifier: Apache-2.0
// A run in f32 follows the same losses on every device.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/check.h"
#include "base/file.h"
#include "wick/wick.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

std::vector<double> losses_on(const EngineOptions& device, const fs::path& folder) {
  Engine engine(device);
  Model model = Model::load(engine, {.dtype = "f32"});
  TrainOptions o;
  o.data = (folder / "data").string();
  o.adapter_path = (folder / device.device / device.cuda_arch).string();
  o.batch_size = 4;
  o.iters = 60;
  o.learning_rate = 1e-3;
  o.dropout = 0.1;
  o.steps_per_report = 1;
  o.steps_per_eval = 0;
  std::vector<double> losses;
  TrainCallbacks watch;
  watch.on_step = [&](const StepReport& r) { losses.push_back(r.loss); };
  Trainer(model, o).run(watch);
  return losses;
}

TEST(Devices, GiveTheSameCurveInF32) {
  const std::vector<DeviceReport> devices = Engine::devices();
  const auto gpu = std::find_if(devices.begin(), devices.end(),
                                [](const DeviceReport& d) { return d.name == "cuda"; });
  if (gpu == devices.end() || !gpu->available) GTEST_SKIP() << "no GPU";
  const fs::path folder = fs::temp_directory_path() / cat("wick_devices_", ::getpid());
  make_folder(folder / "data");
  std::string rows;
  for (int i = 0; i < 48; ++i) {
    rows += R"({"text":"row)";
    for (int k = 0; k < 4 + 5 * (i % 7); ++k) rows += cat(" ", i * 31 + k * k);
    rows += "\"}\n";
  }
  write_file(folder / "data/train.jsonl", rows);
  const std::vector<double> wanted = losses_on({.device = "cpu"}, folder);
  ASSERT_EQ(wanted.size(), 60u);
  EXPECT_LT(wanted.back(), 0.9 * wanted.front());
  for (const std::string& arch : gpu->isas) {
    const std::vector<double> got = losses_on({.device = "cuda", .cuda_arch = arch}, folder);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], wanted[i], 1e-4 * wanted[i]) << arch << ", update " << i + 1;
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace wick
