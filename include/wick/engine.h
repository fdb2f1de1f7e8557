// SPDX-License-Identifier: Apache-2.0
// Engine: opens a device and owns its threads and memory. Passed in, never global; a process may
// have several. The device stays open until the last Model that was loaded on it has ended.
//
// Several threads may use one engine: what computes on it takes turns. While one of them trains,
// the others get a kInvalidArgument. One Generator, Trainer or Dataset is for one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wick/handle.h"

namespace wick {

struct EngineOptions {
  std::string device = "auto";  // auto, cuda, cpu, ref
  int threads = 0;              // 0: all that this process may use; at most 4096
  std::string cpu_isa = {};     // "": the best that this CPU has; see devices()
  std::string cuda_arch = {};   // "": the best that this GPU has; sm_80: what every GPU runs
};

struct DeviceReport {
  std::string name;               // what --device takes
  std::string description;        // of the hardware
  std::string isa;                // the instruction set in use
  std::vector<std::string> isas;  // what --cpu-isa or --cuda-arch takes here
  std::string missing;            // an instruction set that is not used, and why
  int threads = 0;
  double peak_gflops = 0;                      // f32, measured; 0 if not
  double peak_bf16_gflops = 0, read_gbps = 0;  // of devices() alone: measured; 0 if not
  int64_t memory_bytes = 0;                    // 0 if unknown
  bool available = true;
  std::string why_not;  // when it is not available: the reason and what to do
};

class Engine {
 public:
  // Throws: kNotFound for a device or instruction set that is not here, naming those that are;
  // kInvalidArgument; kOutOfMemory where the system does not give so many threads.
  explicit Engine(const EngineOptions& options = {});
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  DeviceReport device() const;
  // Every device this binary knows of, and why one is missing.
  static std::vector<DeviceReport> devices();

  struct Impl;
  Impl& impl() const { return *impl_; }

 private:
  explicit Engine(std::shared_ptr<Impl> impl);
  Handle<Impl> impl_;
};

}  // namespace wick
