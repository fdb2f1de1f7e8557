// SPDX-License-Identifier: Apache-2.0
// Results as one page with bars; no script, no network.
#pragma once

#include <filesystem>
#include <vector>

#include "bench/baseline.h"
#include "bench/result.h"

namespace wick {

// `before` holds the comparisons with a baseline, if there was one. Throws: kIo.
void write_bench_html(const std::filesystem::path& path, const BenchMachine& machine,
                      const std::vector<BenchResult>& results,
                      const std::vector<Comparison>& before);

}  // namespace wick
