// SPDX-License-Identifier: Apache-2.0
// Backend: a device that can run plans. Seven functions, called per program and never per op.
//
// Memory is given in elements of a dtype, because a back end may hold them wider than the file does
// (ref keeps every float in its own scalar). Nothing here is thread-safe but info().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace wick {

class ThreadPool;

// A device's size of one element; 0 for a quantised type that rests as its rows of codes.
using ElementBytes = size_t (*)(DType);

// How a frozen matrix rests on a device.
enum class WeightForm : uint8_t {
  kRows,   // row-major, in its own dtype
  kTiles,  // bf16 or codes, as the device's matrix unit wants them (cpu/tiles.h, cuda/codes.cuh)
  kShortTiles,  // the same bf16 in fewer bytes (cpu/short_tiles.h)
};

// Elements on one device.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual size_t bytes() const = 0;
  // The first byte, in the device's own address space.
  virtual std::byte* address() const = 0;
  // Whether a matrix rests here as kShortTiles, where plans say kTiles.
  virtual bool is_short() const { return false; }
};
using BufferPtr = std::shared_ptr<Buffer>;

// What a back end decided about a plan: by step the kernel and its scratch, by weight its form.
struct Selection {
  struct Choice {
    std::string kernel;  // its name, for people
    int candidate = -1;  // its place in the back end's list
    size_t scratch = 0;  // bytes
  };
  std::vector<Choice> steps;
  std::vector<WeightForm> forms;  // by value id
  std::vector<size_t> scratch_bytes() const;
};

// Which buffer holds each weight and state of a plan, by value id of the root; feeds and temps are
// the program's own. Empty for what is not bound.
using Bindings = std::vector<BufferPtr>;

class Program {
 public:
  virtual ~Program() = default;
  // Copies into a feed. `bytes` of the feed's dtype, the whole of it.
  virtual void feed(ValueId id, const void* data, size_t bytes) = 0;
  // Starts one run; never throws. wait() returns when it is done and reports device faults.
  virtual void run() = 0;
  virtual void wait() = 0;
  // run() and wait() for looking: the seconds of each step of the plan. Zero for a step that is
  // made together with the one before it, whose time is that of both. Empty where the device cannot
  // tell.
  virtual std::vector<double> run_timed() {
    run();
    wait();
    return {};
  }
  // Copies a result, or any bound value, out after wait(): `bytes` of its dtype, the whole of it.
  virtual void read(ValueId id, void* data, size_t bytes) const = 0;
  virtual size_t arena_bytes() const = 0;
};

struct DeviceInfo {
  std::string name;               // "cpu", "ref"
  std::string description;        // for people: model, instruction set, threads
  std::string isa;                // the rung in use, where there are several
  std::vector<std::string> isas;  // those that can be asked for here
  std::string missing;            // what is not used here, and why
  int threads = 1;
  double peak_gflops = 0;   // f32, of all threads; 0 if not measured
  size_t memory_bytes = 0;  // what a run may take; 0 if unknown
};

// What a device was measured to reach with all its threads; 0 where it was not.
struct DeviceSpeed {
  double f32_gflops = 0, bf16_gflops = 0;  // products
  double read_gbps = 0;                    // of memory, beyond the caches
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceInfo info() const = 0;
  // GFLOP/s of products in a compute type, measured in a moment, once; 0 if unknown.
  virtual double peak_gflops(DType compute) const { return info().peak_gflops; }
  // Takes part of a second and half a gigabyte: for benchmarks and people.
  virtual DeviceSpeed speed() const { return {}; }
  virtual ElementBytes element_sizes() const = 0;
  size_t element_bytes(DType dtype) const { return element_sizes()(dtype); }
  // Zeroed.
  virtual BufferPtr allocate(DType dtype, int64_t count) = 0;
  // `data` holds `count` elements of `dtype`, the type the buffer was allocated with.
  virtual void upload(Buffer& to, DType dtype, int64_t offset, int64_t count, const void* data) = 0;
  virtual void download(const Buffer& from, DType dtype, int64_t offset, int64_t count,
                        void* data) const = 0;
  // By value id: how each frozen matrix of a plan rests; kRows for every other value. The same for
  // all plans of one model in one compute type, so that they share one copy.
  virtual std::vector<WeightForm> weight_forms(const Plan& plan) const;
  virtual int64_t weight_bytes(const Value& weight, WeightForm form) const;
  // The device's copy of a weight. `rows` holds its elements row-major, in its dtype: row_bytes()
  // for each row. kShortTiles may be asked for where weight_forms() says kTiles, and programs take
  // either; who cannot make a matrix shorter makes kTiles.
  virtual BufferPtr prepare(const Value& weight, WeightForm form, const void* rows);
  // What --dtype auto means here.
  virtual DType preferred_compute() const { return DType::kF32; }
  // Tokens of one run beyond which this device gets no faster by taking more at once.
  virtual int64_t tokens_at_once() const { return 2048; }
  // Whether Program::run() returns before the run is done: then work whose inputs are made on the
  // device can be given to it ahead of time.
  virtual bool runs_ahead() const { return false; }
  // Whether plans for this device make some rows of a block alone where the others are not asked
  // for; else blocks stay alike, which is how a device that joins their steps knows them.
  virtual bool skips_rows() const { return true; }
  // Throws kUnsupported naming op, direction, dtypes, sizes and back end.
  virtual Selection select(const Plan& plan) const = 0;
  // Programs that never run at the same time may share one arena, as large as the largest of them
  // needs (forecast_memory says); null: its own.
  virtual std::unique_ptr<Program> compile(const Plan& plan, const Bindings& bindings,
                                           BufferPtr arena = nullptr) = 0;
};

// Peak memory of a program by kind, in bytes of this device, before a weight is read.
struct MemoryForecast {
  int64_t weights = 0, states = 0, feeds = 0, arena = 0;
  int64_t total() const { return weights + states + feeds + arena; }
};
MemoryForecast forecast_memory(const Plan& plan, const Backend& backend);

struct BackendOptions {
  std::string device = "auto";  // auto, cuda, cpu, ref
  int threads = 0;              // 0: all that this process may use
  std::string cpu_isa = {};     // "": the best there is
  std::string cuda_arch = {};   // "": the best there is; sm_80: what every card runs
};
// Throws kNotFound naming the devices that this binary has.
std::unique_ptr<Backend> open_backend(const BackendOptions& options);
// Those that can be used here, the best first.
std::vector<std::string> backend_names();
struct MissingBackend {
  std::string name, why;
};
std::vector<MissingBackend> missing_backends();

}  // namespace wick
