// SPDX-License-Identifier: Apache-2.0
// One row of a benchmark's table, and what it was measured on.
#pragma once

#include <optional>
#include <string>

#include "bench/stats.h"
#include "io/json.h"

namespace wick {

// The same for all rows of a run.
struct BenchMachine {
  std::string shape;  // of the weights: a shape's name, a folder, or "wick-embedded"
  std::string device, isa, description;
  int threads = 0;
  std::string dtype, weight_dtype;
  double peak_gflops = 0;  // measured, in that type
  double read_gbps = 0;    // measured; 0: not
};

struct BenchResult {
  std::string bench;  // train, decode, ops, …
  std::string what;   // the row: "step", "rms_norm 1024 x 1024", …
  Timing ms;
  int64_t batch = 0, seq = 0, rank = 0;  // 0 where it means nothing
  std::string targets;
  double tokens_per_second = 0, gflop = 0;
  // Arithmetic against the device's measured peak, in percent.
  double percent_of_peak = 0;
  // Share of the time that the device's measured limits ask for: its arithmetic, or reading what
  // must be read once, whichever is longer.
  double utilisation = 0;
  int64_t peak_bytes = 0;      // of the process, since the table began
  int64_t bytes = 0;           // of what the row is about, where it is about memory
  Json more = Json::object();  // figures of this row alone; "note" is for people
};

Json to_json(const BenchResult& result, const BenchMachine& machine);

// A line of --json or of a baseline. Throws: kCorruptFile naming `where` and the field.
BenchResult result_from_json(const Json& line, const std::string& where);

// What makes two lines measurements of the same thing: all settings, no figure.
std::string result_key(const Json& line);

}  // namespace wick
