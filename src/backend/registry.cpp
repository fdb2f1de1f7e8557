// SPDX-License-Identifier: Apache-2.0
// Which back ends this binary has.
#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/ref/ref.h"
#include "base/check.h"

namespace wick {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Backend> (*make)(const BackendOptions&);
};

// The best first: "auto" is the first.
constexpr Entry kEntries[] = {
    {"cpu", make_cpu_backend},
    {"ref", make_ref_backend},
};

}  // namespace

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.push_back(entry.name);
  return names;
}

std::unique_ptr<Backend> open_backend(const BackendOptions& options) {
  if (options.device == "auto") return kEntries[0].make(options);
  std::string known;
  for (const Entry& entry : kEntries) {
    if (options.device == entry.name) return entry.make(options);
    known += cat(known.empty() ? "" : ", ", entry.name);
  }
  fail(ErrorCode::kNotFound, "--device ", options.device, ": this binary has ", known,
       " (or auto); wick devices says why another is missing");
}

}  // namespace wick
