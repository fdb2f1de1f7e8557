// SPDX-License-Identifier: Apache-2.0
// Which back ends this binary has.
#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#ifdef WICK_WITH_CUDA
#include "backend/cuda/cuda.h"
#endif
#include "backend/ref/ref.h"
#include "base/check.h"

namespace wick {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Backend> (*make)(const BackendOptions&);
  // "" where it can be used here, else why not; null: everywhere.
  const std::string& (*problem)() = nullptr;
  bool works() const { return problem == nullptr || problem().empty(); }
};

// The best first: "auto" is the first that works.
constexpr Entry kEntries[] = {
#ifdef WICK_WITH_CUDA
    {"cuda", make_cuda_backend, cuda_problem},
#endif
    {"cpu", make_cpu_backend},
    {"ref", make_ref_backend},
};

}  // namespace

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries)
    if (entry.works()) names.push_back(entry.name);
  return names;
}

std::vector<MissingBackend> missing_backends() {
  std::vector<MissingBackend> missing;
  for (const Entry& entry : kEntries)
    if (!entry.works()) missing.push_back({entry.name, entry.problem()});
#ifndef WICK_WITH_CUDA
  missing.push_back({"cuda", "this build has no CUDA back end; build it where nvcc is found"});
#endif
  return missing;
}

std::unique_ptr<Backend> open_backend(const BackendOptions& options) {
  // Who names a device's instruction set means that device.
  std::string device = options.device;
  if (device == "auto" && !options.cpu_isa.empty()) device = "cpu";
  if (device == "auto" && !options.cuda_arch.empty()) device = "cuda";
  std::string known;
  for (const Entry& entry : kEntries) {
    if (device == "auto" ? entry.works() : device == entry.name) return entry.make(options);
    if (entry.works()) known += cat(known.empty() ? "" : ", ", entry.name);
  }
  for (const MissingBackend& missing : missing_backends())
    if (device == missing.name)
      fail(ErrorCode::kNotFound, "--device ", device, ": ", missing.why, "; this machine has ",
           known, " (or auto); see wick devices");
  fail(ErrorCode::kNotFound, "--device ", device, " is not known; this machine has ", known,
       " (or auto); see wick devices");
}

}  // namespace wick
