// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/cpu.h"

#include <chrono>
#include <cstring>
#include <fstream>
#include <mutex>

#include "backend/cpu/amx.h"
#include "backend/cpu/joined.h"
#include "backend/cpu/optimizer.h"
#include "backend/cpu/quant_fixed.h"
#include "backend/cpu/quant_tiles.h"
#include "backend/cpu/rungs.h"
#include "backend/cpu/short_tiles.h"
#include "backend/cpu/speed.h"
#include "backend/cpu/tile_attention.h"
#include "backend/cpu/tiles.h"
#include "backend/host_program.h"
#include "base/check.h"
#include "base/threads.h"
// After rungs.h, which says what Highway compiles.
#include <hwy/targets.h>

#ifdef __linux__
#include <unistd.h>
#endif

namespace wick {
namespace {

using cpu::Rung;

std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0)
      if (size_t colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "CPU";
}

size_t physical_memory() {
#ifdef __linux__
  long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  size_t bytes = pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : 0;
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  if (size_t most = 0; limit >> most && most > 0) bytes = std::min(bytes, most);
  return bytes;
#else
  return 0;
#endif
}

Rung choose_rung(const std::string& name) {
  for (int i = 0; i < cpu::kRungCount; ++i) {
    Rung rung = static_cast<Rung>(i);
    if (cpu::rung_works(rung) && (name.empty() || name == cpu::rung_name(rung))) return rung;
  }
  bool exists = false;
  for (int i = 0; i < cpu::kRungCount; ++i) exists |= name == cpu::rung_name(static_cast<Rung>(i));
  std::string works, near = exists ? "" : nearest_name(name, cpu_isas());
  for (const std::string& isa : cpu_isas()) works += (works.empty() ? "" : ", ") + isa;
  fail(ErrorCode::kInvalidArgument, "--cpu-isa ", name,
       exists ? " does not run on this machine" : " is not known",
       near.empty() ? "" : cat("; did you mean ", near, "?"), " (this machine has ", works, ")");
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options)
      : rung_(choose_rung(options.cpu_isa)), pool_(options.threads) {
    for (auto list :
         {cpu::tile_candidates, cpu::bf16_act_candidates, cpu::tile_attention_candidates,
          cpu::fixed_linear_candidates, cpu::quant_linear_candidates, cpu::linear_candidates,
          cpu::norm_candidates, cpu::elementwise_candidates, cpu::row_candidates,
          cpu::column_candidates, cpu::attention_fwd_candidates, cpu::attention_bwd_candidates,
          cpu::head_candidates, cpu::kl_head_candidates, cpu::preference_candidates,
          cpu::optimizer_candidates, cpu::matrix_optimizer_candidates}) {
      cpu::Candidates some = list(rung_);
      candidates_.insert(candidates_.end(), some.begin(), some.end());
    }
  }

  DeviceInfo info() const override {
    std::call_once(measured_, [this] { peak_gflops_ = measure_peak(cpu::peak_loop, 20); });
    DeviceInfo info;
    info.name = "cpu";
    info.isa = cpu::rung_name(rung_);
    info.isas = cpu_isas();
    if (!cpu::amx_works()) info.missing = cat("amx: ", cpu::amx_problem());
    info.threads = pool_.threads();
    info.description = cat(model_name(), ", ", info.isa, ", ", info.threads,
                           info.threads == 1 ? " thread" : " threads");
    info.peak_gflops = peak_gflops_;
    info.memory_bytes = physical_memory();
    return info;
  }

  double peak_gflops(DType compute) const override {
    if (compute != DType::kBF16 || !cpu::rung_has_bf16(rung_)) return info().peak_gflops;
    std::call_once(measured_bf16_,
                   [this] { peak_bf16_gflops_ = measure_peak(cpu::bf16_peak_loop, 20); });
    return peak_bf16_gflops_;
  }

  DeviceSpeed speed() const override {
    DeviceSpeed speed;
    speed.f32_gflops = std::max(info().peak_gflops, measure_peak(cpu::peak_loop, 200));
    if (cpu::rung_has_bf16(rung_)) speed.bf16_gflops = measure_peak(cpu::bf16_peak_loop, 200);
    speed.read_gbps = measure_reads();
    return speed;
  }

  ElementBytes element_sizes() const override { return elements_.bytes; }
  BufferPtr allocate(DType dtype, int64_t count) override {
    return host_allocate(elements_, dtype, count);
  }
  void upload(Buffer& to, DType dtype, int64_t offset, int64_t count, const void* data) override {
    host_upload(elements_, to, dtype, offset, count, data);
  }
  void download(const Buffer& from, DType dtype, int64_t offset, int64_t count,
                void* data) const override {
    host_download(elements_, from, dtype, offset, count, data);
  }
  DType preferred_compute() const override {
    return cpu::rung_has_bf16(rung_) ? DType::kBF16 : DType::kF32;
  }
  std::vector<WeightForm> weight_forms(const Plan& plan) const override {
    return cpu::rung_has_bf16(rung_) ? tile_forms(plan) : Backend::weight_forms(plan);
  }
  int64_t weight_bytes(const Value& weight, WeightForm form) const override {
    if (form == WeightForm::kRows) return Backend::weight_bytes(weight, form);
    const int64_t n = weight.shape[0], k = weight.shape[1];
    return static_cast<int64_t>(dtype_is_quantized(weight.dtype)
                                    ? cpu::QuantTiles(nullptr, weight.dtype, n, k).bytes()
                                    : cpu::tiles_bytes(n, k));
  }
  BufferPtr prepare(const Value& weight, WeightForm form, const void* rows) override {
    if (form == WeightForm::kRows && !dtype_is_quantized(weight.dtype))
      return Backend::prepare(weight, form, rows);
    if (form == WeightForm::kShortTiles) {
      if (BufferPtr made = prepare_short(weight, rows)) return made;
      form = WeightForm::kTiles;
    }
    auto made = std::make_shared<HostBuffer>(static_cast<size_t>(weight_bytes(weight, form)));
    if (form == WeightForm::kRows) {
      std::memcpy(made->data(), rows, made->bytes());
      return made;
    }
    const int64_t n = weight.shape[0], k = weight.shape[1];
    if (dtype_is_quantized(weight.dtype))
      cpu::pack_quant_tiles(pool_, weight.dtype, rows, n, k, made->data());
    else
      cpu::pack_tiles(pool_, weight.dtype, rows, n, k, made->data());
    return made;
  }
  Selection select(const Plan& plan) const override {
    return select_candidates(plan, candidates_, pool_.threads(), "cpu", weight_forms(plan));
  }
  std::unique_ptr<Program> compile(const Plan& plan, const Bindings& bindings,
                                   BufferPtr arena) override {
    return std::make_unique<HostProgram>(plan, select(plan), candidates_, bindings, elements_,
                                         pool_, std::move(arena), cpu::join_steps);
  }

 private:
  // Null: not here, or not this matrix.
  BufferPtr prepare_short(const Value& weight, const void* rows) {
    const int64_t n = weight.shape[0], k = weight.shape[1];
    if (rung_ != Rung::kAvx512Bf16 || dtype_is_quantized(weight.dtype) || !cpu::may_be_short(n, k))
      return nullptr;
    auto made = std::make_shared<HostBuffer>(cpu::short_tiles_bytes(n, k), true);
    return cpu::pack_short_tiles(pool_, weight.dtype, rows, n, k, made->data()) ? made : nullptr;
  }

  // On threads of its own: info() may be called while the pool is at work.
  // The best of several short rounds, since a round in which another process had a CPU, or this one
  // was stopped, says nothing.
  double measure_peak(double (*loop)(Rung, int64_t), int milliseconds) const {
    using Clock = std::chrono::steady_clock;
    ThreadPool pool(pool_.threads());
    double best = 0;
    int64_t rounds = 1000;
    const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
    for (int i = 0; i < 8 || Clock::now() < end; ++i) {
      auto t0 = Clock::now();
      pool.parallel(pool.threads(), [&](int64_t) { loop(rung_, rounds); });
      double seconds = std::chrono::duration<double>(Clock::now() - t0).count();
      best = std::max(
          best, pool.threads() * loop(rung_, 1) * static_cast<double>(rounds) / seconds * 1e-9);
      if (seconds < 5e-4) rounds *= 2;
    }
    return best;
  }

  // Each thread reads a stretch of its own, more than caches hold, in one stream or in four: which
  // is faster depends on the processor. The best of a few rounds.
  double measure_reads() const {
    using Clock = std::chrono::steady_clock;
    constexpr size_t kBytes = size_t{512} << 20;
    ThreadPool pool(pool_.threads());
    const HostBuffer buffer(kBytes);
    const size_t share = kBytes / static_cast<size_t>(pool.threads()) / 64 * 64;
    pool.parallel(pool.threads(), [&](int64_t i) {
      std::memset(buffer.data() + static_cast<size_t>(i) * share, 1, share);
    });
    double best = 0;
    for (int round = 0; round < 8; ++round) {
      auto t0 = Clock::now();
      pool.parallel(pool.threads(), [&](int64_t i) {
        (round % 2 == 0 ? cpu::read_loop : cpu::read_four_loop)(
            buffer.data() + static_cast<size_t>(i) * share, share);
      });
      double seconds = std::chrono::duration<double>(Clock::now() - t0).count();
      best = std::max(best, static_cast<double>(share) * pool.threads() / seconds * 1e-9);
    }
    return best;
  }

  Rung rung_;
  HostElements elements_ = plain_elements();
  mutable ThreadPool pool_;
  std::vector<Candidate> candidates_;
  mutable std::once_flag measured_, measured_bf16_;
  mutable double peak_gflops_ = 0, peak_bf16_gflops_ = 0;
};

}  // namespace

std::vector<std::string> cpu_isas() {
  std::vector<std::string> names;
  for (int i = 0; i < cpu::kRungCount; ++i)
    if (cpu::rung_works(static_cast<Rung>(i)))
      names.push_back(cpu::rung_name(static_cast<Rung>(i)));
  return names;
}

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace wick
