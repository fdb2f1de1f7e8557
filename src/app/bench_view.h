// SPDX-License-Identifier: Apache-2.0
// The rows of wick bench as a table for people.
#pragma once

#include <string>
#include <vector>

#include "app/terminal.h"
#include "bench/baseline.h"
#include "bench/result.h"

namespace wick {

class BenchView {
 public:
  explicit BenchView(Output& out) : out_(out) {}

  void machine(const BenchMachine& machine, const std::string& model);
  // A row, under its table's heading.
  void row(const BenchResult& result);
  void comparison(const std::vector<Comparison>& all, size_t lines, const std::string& baseline);

 private:
  Output& out_;
  std::string table_, note_;  // the last heading, the last line under a row
};

}  // namespace wick
