// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/cpu.h"
#include "base/check.h"
#include "ops/modes.h"

namespace wick::ops {

std::vector<Device> find_devices(const std::string& only) {
  std::vector<Device> devices;
  // A back end's own name means the first of its instruction sets: the best.
  auto add = [&](const std::string& backend, const std::string& isa, bool best) {
    const std::string name = isa.empty() ? backend : backend + "/" + isa;
    bool wanted = only.empty() || only == name || (only == backend && best);
    if (!wanted) return;
    const bool cuda = backend == "cuda";
    devices.push_back({name, [=](int threads) {
                         return open_backend({.device = backend,
                                              .threads = threads,
                                              .cpu_isa = cuda ? "" : isa,
                                              .cuda_arch = cuda ? isa : ""});
                       }});
  };
  for (const std::string& backend : backend_names()) {
    std::vector<std::string> isas;
    if (backend == "cpu") isas = cpu_isas();
    if (backend == "cuda") isas = open_backend({.device = backend})->info().isas;
    if (isas.empty()) isas.push_back("");
    for (const std::string& isa : isas) add(backend, isa, isa == isas.front());
  }
  if (devices.empty()) fail(ErrorCode::kNotFound, "no device is called ", only);
  return devices;
}

}  // namespace wick::ops
