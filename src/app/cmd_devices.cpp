// SPDX-License-Identifier: Apache-2.0
#include "app/format.h"
#include "app/options.h"
#include "app/terminal.h"
#include "app/verbs.h"
#include "base/check.h"

namespace wick {

namespace {

int run(const OutputFlags& flags) {
  Output out(flags.json, flags.quiet);
  for (const DeviceReport& d : Engine::devices()) {
    out.event({{"name", d.name},
               {"available", d.available},
               {"description", d.description},
               {"isa", d.isa},
               {"isas", d.isas},
               {"missing", d.missing},
               {"threads", d.threads},
               {"peak_gflops", d.peak_gflops},
               {"peak_bf16_gflops", d.peak_bf16_gflops},
               {"read_gbps", d.read_gbps},
               {"memory_bytes", d.memory_bytes},
               {"why_not", d.why_not}});
    if (out.json()) continue;
    auto row = [&](const char* name, const std::string& value) {
      if (!value.empty()) out.result(cat("  ", name, value));
    };
    out.result(cat(d.name, d.available ? "" : "   not available"));
    row("hardware      ", d.description);
    std::string takes = d.isas.empty()
                            ? ""
                            : cat(d.name == "cuda" ? " (--cuda-arch takes " : " (--cpu-isa takes ",
                                  joined(d.isas, ", "), ")");
    row("instructions  ", d.isa.empty() ? "" : d.isa + takes);
    row("without       ", d.missing);
    row("threads       ", d.threads > 0 ? std::to_string(d.threads) : "");
    row("peak          ",
        d.peak_gflops > 0 ? fixed(d.peak_gflops, 0) + " GFLOP/s in f32, measured" : "");
    row("", d.peak_bf16_gflops > 0
                ? cat("              ", fixed(d.peak_bf16_gflops, 0), " GFLOP/s in bf16, measured")
                : "");
    row("reads         ", d.read_gbps > 0 ? fixed(d.read_gbps, 1) + " GB/s, measured" : "");
    row("memory        ", d.memory_bytes > 0 ? format_bytes(d.memory_bytes) : "");
    row("why           ", d.why_not);
  }
  return kDone;
}

}  // namespace

std::function<int()> declare_devices(Args& args) {
  auto flags = std::make_shared<OutputFlags>();
  args.summary = "what this machine offers, and why something is missing";
  args.json =
      "One object per device: name, available, description, isa, isas, missing, threads, "
      "peak_gflops, "
      "peak_bf16_gflops, read_gbps, "
      "memory_bytes, why_not.";
  args.examples = {{"wick devices", "names for --device and --cpu-isa"}};
  add_output_flags(args, *flags);
  return [flags] { return run(*flags); };
}

}  // namespace wick
