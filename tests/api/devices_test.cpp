// SPDX-License-Identifier: Apache-2.0
// A run in f32 follows the same losses on every device.
#include "api/run_fixture.h"

namespace wick {
namespace {

class DevicesTest : public RunTest {
 protected:
  std::vector<double> losses_on(const EngineOptions& device) {
    Engine engine(device);
    Model model = Model::load(engine, {.dtype = "f32"});
    TrainOptions o = run_options(device.device + device.cuda_arch);
    o.iters = 60;
    o.learning_rate = 1e-3;
    o.dropout = 0.1;
    o.steps_per_eval = 0;
    return losses(Trainer(model, o).run());
  }
};

TEST_F(DevicesTest, GiveTheSameCurveInF32) {
  const std::vector<DeviceReport> devices = Engine::devices();
  const auto gpu = std::find_if(devices.begin(), devices.end(),
                                [](const DeviceReport& d) { return d.name == "cuda"; });
  if (gpu == devices.end() || !gpu->available) GTEST_SKIP() << "no GPU";
  write_texts("data", 48, 7);
  const std::vector<double> wanted = losses_on({.device = "cpu"});
  ASSERT_EQ(wanted.size(), 60u);
  EXPECT_LT(wanted.back(), 0.9 * wanted.front());
  for (const std::string& arch : gpu->isas) {
    const std::vector<double> got = losses_on({.device = "cuda", .cuda_arch = arch});
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], wanted[i], 1e-4 * wanted[i]) << arch << ", update " << i + 1;
  }
}

}  // namespace
}  // namespace wick
