// SPDX-License-Identifier: Apache-2.0
#include "bench/read_probe.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "backend/cpu/rungs.h"
#include "backend/cpu/speed.h"

namespace wick {

namespace {

// Longer than an idle pool spins, so that the threads of this one are asleep when a case is run.
constexpr std::chrono::microseconds kRest{500};

}  // namespace

ReadProbe::ReadProbe(const BenchContext& c, const Plan& plan) : pool_(c.machine.threads) {
  std::map<std::string, WeightSpec> specs;
  for (const WeightSpec& spec : weight_specs(c.config())) specs.emplace(spec.name, spec);
  const std::vector<WeightForm> forms = c.backend().weight_forms(plan);
  std::vector<bool> taken(plan.values.size(), false);
  for (const Step& step : plan.steps) {
    if (step.op != Op::kLinear && step.op != Op::kHead) continue;
    for (ValueId input : step.inputs) {
      if (input == kNone) continue;
      const ValueId id = plan.root(input);
      const size_t at = static_cast<size_t>(id);
      const Value& v = plan.value(id);
      const auto spec = specs.find(v.name);
      if (v.kind != Kind::kWeight || v.shape.rank() < 2 || spec == specs.end() || taken[at])
        continue;
      taken[at] = true;
      buffers_.push_back(c.generating_weights().buffer(spec->second, v, forms[at], c.backend()));
      bytes_ += buffers_.back()->bytes();
    }
  }
}

double ReadProbe::read(Loop loop) {
  const size_t threads = static_cast<size_t>(pool_.threads());
  const auto start = std::chrono::steady_clock::now();
  pool_.parallel(pool_.threads(), [&](int64_t thread) {
    for (const BufferPtr& buffer : buffers_) {
      const size_t share = buffer->bytes() / threads / 64 * 64;
      loop(buffer->address() + static_cast<size_t>(thread) * share, share);
    }
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(bytes_) / seconds * 1e-9;
}

double ReadProbe::gb_per_second() {
  if (loop_ == nullptr) {
    double one = 0, four = 0;
    for (int round = 0; round < 3; ++round) {
      one = std::max(one, read(cpu::read_loop));
      four = std::max(four, read(cpu::read_four_loop));
    }
    loop_ = one > four ? cpu::read_loop : cpu::read_four_loop;
  }
  const double speed = read(loop_);
  std::this_thread::sleep_for(kRest);
  return speed;
}

}  // namespace wick
