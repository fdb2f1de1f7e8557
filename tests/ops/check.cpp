// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ops/guarded.h"
#include "ops/modes.h"
#include "ops/tolerance.h"

namespace wick::ops {
namespace {

constexpr int kThreadCounts[] = {1, 2, 3};

// Whether ref's value of an element is part of the op's meaning.
bool is_defined(const Case& c, const Arg& arg, size_t i) {
  return !(c.op == Op::kHead && arg.name == "lse" && c.arg("targets").ints[i] < 0);
}

// "" or the worst element of an output that is out of tolerance. `norms`: of each element's terms,
// or empty.
std::string compare(const Case& c, const Arg& arg, const std::vector<double>& got,
                    const std::vector<double>& want, const std::vector<double>& norms,
                    bool has_units, bool has_integers) {
  double mean = 0;
  for (double w : want)
    mean += std::isfinite(w) ? std::abs(w) / static_cast<double>(want.size()) : 0;
  const int half_terms = arg.by_units && !has_units ? 0 : arg.half_terms;
  const bool own_terms = half_terms > 0 && !norms.empty();
  double limit = tolerance(arg.dtype, arg.reduction, own_terms ? 0 : half_terms);
  if (has_integers) limit += arg.integer_terms;
  const double of_terms = own_terms ? half_terms * rounded_terms(arg.reduction) : 0;
  auto allowed = [&](size_t i, double scale) {
    return own_terms ? limit + of_terms * norms[i] / scale : limit;
  };
  double worst = 0, worst_allowed = limit;  // the error, in its own limits
  size_t at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i] || !is_defined(c, arg, i)) continue;
    double scale = std::max({std::abs(want[i]), mean, kCancelledScale});
    double error = std::isfinite(want[i]) ? std::abs(got[i] - want[i]) / scale : INFINITY;
    if (std::isnan(got[i])) error = INFINITY;
    if (error / allowed(i, scale) <= worst / worst_allowed) continue;
    worst = error;
    worst_allowed = allowed(i, scale);
    at = i;
  }
  if (worst <= worst_allowed) return {};
  return cat(arg.name, "[", at, "] = ", got[at], ", wanted ", want[at], " (relative error ", worst,
             ", allowed ", worst_allowed, ")");
}

class Opened {
 public:
  explicit Opened(const Device& device) : name_(device.name) {
    for (int threads : kThreadCounts) {
      auto backend = device.open(threads);
      // One that has no use for more threads is not run again for them.
      if (backend->info().threads == threads) backends_.push_back(std::move(backend));
    }
  }

  // "" or what is wrong. Throws: kUnsupported.
  std::string check(const Case& c, Dir dir, const std::vector<std::vector<double>>& want,
                    const std::vector<std::vector<double>>& norms) {
    std::vector<std::vector<std::byte>> bits;
    for (size_t b = 0; b < backends_.size(); ++b) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        GuardedStep step(*backends_[b], c, dir);
        step.run();
        std::string wrong = step.damage();
        if (!wrong.empty()) return wrong;
        bool first = bits.empty();
        for (size_t i = 0; i < step.outputs().size(); ++i) {
          const auto& out = step.outputs()[i];
          if (first) bits.push_back(out ? out->element_bytes() : std::vector<std::byte>{});
          if (!out) continue;
          const Arg& arg = c.arg((dir == Dir::kForward ? c.fwd_out : c.bwd_out)[i]);
          if (first) {
            wrong =
                compare(c, arg, out->contents(), want[i], norms[i], has_units(), has_integers());
          }
          if (!first && out->element_bytes() != bits[i]) {
            wrong = cat(arg.name, " has other bits with ", kThreadCounts[b], " threads, run ",
                        repeat + 1, ", than with 1 thread, run 1");
          }
          if (!wrong.empty()) return wrong;
        }
      }
    }
    return {};
  }

  const std::string& name() const { return name_; }
  // Whether products are made by units of bf16.
  bool has_units() const { return backends_[0]->preferred_compute() == DType::kBF16; }
  // Whether products of codes take x in integers.
  bool has_integers() const {
    const std::string isa = backends_[0]->info().isa;
    return isa == "avx2" || isa == "avx512";
  }

 private:
  std::string name_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

}  // namespace

int check_cases(const std::vector<Case>& cases, const std::vector<Device>& devices) {
  int failures = 0, passed = 0, missing = 0;
  std::vector<Opened> opened;
  for (const Device& device : devices) opened.emplace_back(device);
  const bool any_units = std::any_of(opened.begin(), opened.end(),
                                     [](const Opened& device) { return device.has_units(); });
  for (const Case& c : cases) {
    for (Dir dir : {Dir::kForward, Dir::kBackward}) {
      if (!c.runs(dir)) continue;
      const auto want = run_reference(c, dir);
      const auto norms =
          any_units ? term_norms(c, dir) : std::vector<std::vector<double>>(want.size());
      for (Opened& device : opened) {
        std::string wrong;
        try {
          wrong = device.check(c, dir, want, norms);
        } catch (const Error& e) {
          if (e.code() == ErrorCode::kUnsupported && c.flag("optional")) {
            ++missing;
            continue;
          }
          wrong = e.what();
        }
        ++(wrong.empty() ? passed : failures);
        if (!wrong.empty()) {
          std::printf("FAIL %s %s_%s %s: %s\n", device.name().c_str(), op_name(c.op),
                      dir == Dir::kForward ? "fwd" : "bwd", c.text.c_str(), wrong.c_str());
        }
      }
    }
  }
  std::printf("check: %d passed, %d failed, %d optional cases not supported\n", passed, failures,
              missing);
  return failures;
}

}  // namespace wick::ops
