// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/cpu.h"
#include "base/check.h"
#include "ops/modes.h"

namespace wick::ops {

std::vector<Device> find_devices(const std::string& only) {
  std::vector<Device> devices;
  auto add = [&](const std::string& name, const std::string& backend, const std::string& isa) {
    bool wanted = only.empty() || only == name || (only == backend && isa == cpu_isas().front());
    if (!wanted) return;
    devices.push_back({name, [=](int threads) {
                         return open_backend(
                             {.device = backend, .threads = threads, .cpu_isa = isa});
                       }});
  };
  for (const std::string& backend : backend_names()) {
    if (backend != "cpu") {
      add(backend, backend, "");
      continue;
    }
    for (const std::string& isa : cpu_isas()) add(backend + "/" + isa, backend, isa);
  }
  if (devices.empty()) fail(ErrorCode::kNotFound, "no device is called ", only);
  return devices;
}

}  // namespace wick::ops
