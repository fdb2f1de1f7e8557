// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include "api/internal.h"
#include "base/check.h"
#include "base/process.h"

namespace wick {

namespace {

DeviceReport report(const DeviceInfo& info) {
  DeviceReport r;
  r.name = info.name;
  r.description = info.description;
  r.isa = info.isa;
  r.isas = info.isas;
  r.missing = info.missing;
  r.threads = info.threads;
  r.peak_gflops = info.peak_gflops;
  r.memory_bytes =
      info.memory_bytes > 0 ? static_cast<int64_t>(info.memory_bytes) : available_memory_bytes();
  return r;
}

}  // namespace

Engine::Engine(const EngineOptions& options) : impl_(std::make_unique<Impl>()) {
  constexpr int kMostThreads = 4096;
  if (options.threads < 0 || options.threads > kMostThreads)
    fail(ErrorCode::kInvalidArgument, "--threads is ", options.threads, ", wanted 0 (all) to ",
         kMostThreads);
  BackendOptions b;
  b.device = options.device;
  b.threads = options.threads;
  b.cpu_isa = options.cpu_isa;
  b.cuda_arch = options.cuda_arch;
  impl_->backend = open_backend(b);
}

Engine::Engine(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

EngineTurn::EngineTurn(const Engine& engine, bool trains) : engine_(engine.impl()) {
  constexpr auto kPatience = std::chrono::milliseconds(20);
  while (!engine_.turn.try_lock_for(kPatience))
    if (engine_.trains)
      fail(ErrorCode::kInvalidArgument,
           "another thread trains on this Engine; wait for its end, or give this thread an Engine "
           "of its own");
  if (trains) outermost_run_ = !engine_.trains.exchange(true);
}

EngineTurn::~EngineTurn() {
  if (outermost_run_) engine_.trains = false;
  engine_.turn.unlock();
}

Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

DeviceReport Engine::device() const { return report(impl_->backend->info()); }

std::vector<DeviceReport> Engine::devices() {
  std::vector<DeviceReport> all;
  for (const std::string& name : backend_names()) {
    BackendOptions b;
    b.device = name;
    const std::unique_ptr<Backend> backend = open_backend(b);
    DeviceReport r = report(backend->info());
    const DeviceSpeed speed = backend->speed();
    r.peak_bf16_gflops = speed.bf16_gflops;
    r.read_gbps = speed.read_gbps;
    all.push_back(std::move(r));
  }
  for (const MissingBackend& missing : missing_backends()) {
    DeviceReport r;
    r.name = missing.name;
    r.available = false;
    r.why_not = missing.why;
    all.push_back(std::move(r));
  }
  return all;
}

}  // namespace wick
