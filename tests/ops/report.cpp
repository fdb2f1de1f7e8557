// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>

#include "base/check.h"
#include "ops/guarded.h"
#include "ops/modes.h"

namespace wick::ops {
namespace {

constexpr const char* kPageHead =
    "# What each device computes\n"
    "\n"
    "Made by `build/ops_runner support > docs/ops.md` on a machine with all of these instruction\n"
    "sets; a test compares it for those that a machine has. Devices that compute the same share a\n"
    "column. A cell names the types of the activations and, after a \"×\", of the weights, any "
    "with\n"
    "any. Sums are in f32 everywhere; statistics, parameters and their gradients are f32 whatever\n"
    "the activations are. What the operands are is in [plan/op.h](../src/plan/op.h), which sizes\n"
    "are tested in [tests/ops](../tests/ops).\n"
    "\n";

bool is_supported(const Backend& backend, Case c, Dir dir, DType activations, DType weights) {
  for (Arg& arg : c.args) {
    if (arg.role == Role::kActivation) arg.dtype = activations;
    if (arg.role == Role::kWeight) arg.dtype = weights;
  }
  try {
    backend.select(one_step_plan(c, dir));
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) throw;
    return false;
  }
}

bool has_role(const Case& c, Dir dir, Role role) {
  for (const auto* names : {dir == Dir::kForward ? &c.fwd_in : &c.bwd_in,
                            dir == Dir::kForward ? &c.fwd_out : &c.bwd_out})
    for (const std::string& name : *names)
      if (!name.empty() && c.arg(name).role == role) return true;
  return false;
}

// "f32 bf16 × f32 bf16 f16", or every pair that works where not all of them do.
std::string cell(const Backend& backend, const Case& c, Dir dir) {
  std::vector<DType> activations = {DType::kF32}, weights = {DType::kF32};
  if (has_role(c, dir, Role::kActivation)) activations.push_back(DType::kBF16);
  const bool weighted = has_role(c, dir, Role::kWeight);
  if (weighted) weights = {DType::kF32, DType::kBF16, DType::kF16};
  if (weighted && (c.op == Op::kLinear || c.op == Op::kHead || c.op == Op::kEmbed))
    weights.insert(weights.end(), {DType::kQ8G32, DType::kQ4G32});
  std::string rows, columns, pairs;
  bool all = true;
  for (DType a : activations) {
    rows += cat(rows.empty() ? "" : " ", dtype_name(a));
    for (DType w : weights) {
      if (a == activations.front()) columns += cat(columns.empty() ? "" : " ", dtype_name(w));
      if (is_supported(backend, c, dir, a, w))
        pairs += cat(pairs.empty() ? "" : ", ", dtype_name(a), weighted ? "×" : "",
                     weighted ? dtype_name(w) : "");
      else
        all = false;
    }
  }
  if (!all) return pairs.empty() ? "–" : pairs;
  return weighted ? cat(rows, " × ", columns) : rows;
}

// Cells by row, the first of a row its name; the first row is the head.
using Table = std::vector<std::vector<std::string>>;

Table support_table(const std::vector<Case>& cases, const std::vector<Device>& devices) {
  Table table = {{"op"}};
  std::vector<std::unique_ptr<Backend>> backends;
  for (const Device& device : devices) {
    table[0].push_back(device.name);
    backends.push_back(device.open(1));
  }
  for (int op = 0; op < kOpCount; ++op) {
    auto c = std::find_if(cases.begin(), cases.end(),
                          [&](const Case& x) { return static_cast<int>(x.op) == op; });
    if (c == cases.end()) continue;
    for (Dir dir : {Dir::kForward, Dir::kBackward}) {
      if (!c->runs(dir)) continue;
      table.push_back({cat(op_name(c->op), dir == Dir::kForward ? "_fwd" : "_bwd")});
      for (const auto& backend : backends) table.back().push_back(cell(*backend, *c, dir));
    }
  }
  return table;
}

// Devices with the same cells in one column.
Table merged(const Table& table) {
  Table made(table.size());
  for (size_t row = 0; row < table.size(); ++row) made[row].push_back(table[row][0]);
  for (size_t column = 1; column < table[0].size(); ++column) {
    size_t at = 1;
    for (; at < made[0].size(); ++at) {
      bool same = true;
      for (size_t row = 1; row < table.size(); ++row) same &= made[row][at] == table[row][column];
      if (same) break;
    }
    if (at < made[0].size()) {
      made[0][at] += ", " + table[0][column];
      continue;
    }
    for (size_t row = 0; row < table.size(); ++row) made[row].push_back(table[row][column]);
  }
  return made;
}

// Whether the head of a column has the device in its list.
bool names(const std::string& head, const std::string& device) {
  return cat(", ", head, ",").find(cat(", ", device, ",")) != std::string::npos;
}

Table parse_table(const std::string& page) {
  Table table;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| ", 0) != 0) continue;
    table.emplace_back();
    for (size_t at = 2, end; (end = line.find(" |", at)) != std::string::npos; at = end + 3)
      table.back().push_back(line.substr(at, end - at));
  }
  return table;
}

}  // namespace

std::string support_page(const std::vector<Case>& cases, const std::vector<Device>& devices) {
  const Table table = merged(support_table(cases, devices));
  std::string page = kPageHead;
  for (size_t r = 0; r < table.size(); ++r) {
    page += "|";
    for (const std::string& text : table[r]) page += cat(" ", text, " |");
    page += "\n";
    if (r != 0) continue;
    for (size_t i = 0; i < table[0].size(); ++i) page += "|---";
    page += "|\n";
  }
  return page;
}

int check_support(const std::string& page, const std::vector<Case>& cases,
                  const std::vector<Device>& devices) {
  const Table want = support_table(cases, devices), got = parse_table(page);
  int failures = 0, same = 0;
  for (size_t column = 1; column < want[0].size(); ++column) {
    const std::string& device = want[0][column];
    size_t at = 1;
    while (!got.empty() && at < got[0].size() && !names(got[0][at], device)) ++at;
    if (got.empty() || at == got[0].size()) {
      std::printf("%s is not on the page\n", device.c_str());
      continue;
    }
    for (size_t row = 1; row < want.size(); ++row) {
      const bool there = row < got.size() && at < got[row].size() && got[row][0] == want[row][0];
      const std::string cell = there ? got[row][at] : "nothing";
      ++(cell == want[row][column] ? same : failures);
      if (cell != want[row][column])
        std::printf("FAIL %s on %s: the page has %s, should have %s\n", want[row][0].c_str(),
                    device.c_str(), cell.c_str(), want[row][column].c_str());
    }
  }
  if (same == 0) ++failures;
  std::printf("support: %d cells agree, %d do not%s\n", same, failures,
              failures == 0 ? "" : "; make the page again: ops_runner support > docs/ops.md");
  return failures;
}

void bench_cases(const std::vector<Case>& cases, const std::vector<Device>& devices) {
  using Clock = std::chrono::steady_clock;
  for (const Device& device : devices) {
    auto backend = device.open(0);
    for (const Case& c : cases) {
      if (!c.flag("bench")) continue;
      for (Dir dir : {Dir::kForward, Dir::kBackward}) {
        if (!c.runs(dir)) continue;
        GuardedStep step(*backend, c, dir);
        step.run();
        std::vector<double> ms;
        double total = 0;
        while (ms.size() < 5 || (total < 200 && ms.size() < 1000)) {
          auto start = Clock::now();
          step.run();
          ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
          total += ms.back();
        }
        std::nth_element(ms.begin(), ms.begin() + static_cast<ptrdiff_t>(ms.size() / 2), ms.end());
        double median = ms[ms.size() / 2];
        Plan plan = one_step_plan(c, dir);
        std::printf("%-4s %s_%s  %.4f ms  %.1f GFLOP/s  %s\n", device.name.c_str(), op_name(c.op),
                    dir == Dir::kForward ? "fwd" : "bwd", median, plan_flops(plan) / median / 1e6,
                    c.text.c_str());
      }
    }
  }
}

}  // namespace wick::ops
