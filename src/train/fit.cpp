// SPDX-License-Identifier: Apache-2.0
#include "train/fit.h"

#include <algorithm>

namespace wick {

namespace {

// Updates of the first epoch by which a size of packs is judged.
constexpr int64_t kJudgedUpdates = 64;
// Starting a pack costs about as much as this many tokens; as in data/packing.cpp.
constexpr double kPackCost = 512;
constexpr int64_t kTokenStep = 16;

// Of one update if a pack has that many tokens: packs, and the targets that the fullest has.
FitCandidate with_tokens(const ExampleSet& rows, const Order& order, int64_t tokens,
                         int64_t least_targets) {
  PackLimits limits{tokens, least_targets};
  const int64_t updates = std::min(order.first_updates(), kJudgedUpdates);
  for (int64_t u = 0; u < updates; ++u) {
    const std::vector<int64_t> chosen = order.update(u);
    int64_t targets = 0;
    for (int64_t row : chosen) targets += row_size(rows[row]).targets;
    for (const Pack& pack : pack_rows(rows, chosen, {tokens, targets}, 0, 0, true))
      limits.targets = std::max(limits.targets, pack.used_targets);
  }
  return fit_candidate(rows, order, limits, true);
}

}  // namespace

double packs_per_update(const ExampleSet& rows, const Order& order, const PackLimits& limits,
                        bool packing) {
  const int64_t updates = std::min(order.first_updates(), kJudgedUpdates);
  size_t packs = 0;
  for (int64_t u = 0; u < updates; ++u)
    packs += pack_rows(rows, order.update(u), limits, 0, 0, packing).size();
  return static_cast<double>(packs) / static_cast<double>(updates);
}

FitCandidate fit_candidate(const ExampleSet& rows, const Order& order, const PackLimits& limits,
                           bool packing) {
  return {limits, packs_per_update(rows, order, limits, packing),
          largest_pack(rows, order, limits, packing)};
}

double pack_overhead(const PackLimits& limits) {
  return 1.0 + kPackCost / static_cast<double>(limits.tokens);
}

std::vector<FitCandidate> fit_candidates(const ExampleSet& rows, const Order& order,
                                         const PackLimits& free, const PackLimits& least,
                                         bool packing) {
  std::vector<FitCandidate> all;
  all.push_back(fit_candidate(rows, order, free, packing));
  if (!packing) return all;
  // Each about three quarters of the one before.
  for (int64_t tokens = free.tokens; tokens > least.tokens;) {
    tokens = std::max(least.tokens, tokens * 3 / 4 / kTokenStep * kTokenStep);
    all.push_back(with_tokens(rows, order, tokens, least.targets));
  }
  return all;
}

Fit fit_step(const Backend& backend, const StepMaker& make,
             std::span<const FitCandidate> candidates, int64_t least_blocks, int64_t blocks,
             int64_t memory_bytes) {
  Fit best;
  auto attempt = [&](const FitCandidate& c, int64_t recompute) {
    Fit fit;
    fit.candidate = c;
    fit.recompute_blocks = recompute;
    fit.step = make(c, recompute);
    fit.memory = fit.step->forecast(backend);
    fit.cost = c.packs * fit.step->micro_flops() * pack_overhead(c.limits);
    fit.fits = fit.memory.total() <= memory_bytes;
    return fit;
  };
  auto take = [&](Fit fit) {
    const bool better =
        !best.step || (fit.fits && !best.fits) ||
        (fit.fits == best.fits &&
         (fit.fits ? fit.cost < best.cost : fit.memory.total() < best.memory.total()));
    if (better) best = std::move(fit);
  };
  for (const FitCandidate& c : candidates) {
    Fit least = attempt(c, least_blocks);
    if (least.fits) {
      take(std::move(least));
      break;  // smaller packs without more recompute cost more
    }
    // Recompute only adds to its cost.
    if (best.fits && least.cost >= best.cost) continue;
    least = attempt(c, blocks);
    // The least number of blocks that fits: memory falls with it.
    int64_t low = least_blocks + 1, high = least.fits ? blocks : least_blocks;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      Fit fit = attempt(c, middle);
      if (fit.fits) {
        high = middle;
        least = std::move(fit);
      } else {
        low = middle + 1;
      }
    }
    take(std::move(least));
  }
  return best;
}

ArenaParts arena_parts(const Plan& plan, const Backend& backend, int64_t arena_bytes) {
  struct Life {
    int64_t bytes = 0;
    size_t first = 0, last = 0;
    bool head = false;
  };
  std::vector<Life> lives(plan.values.size());
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    auto touch = [&](ValueId id) {
      if (id == kNone || plan.value(plan.root(id)).kind != Kind::kTemp) return;
      const Value& root = plan.value(plan.root(id));
      Life& life = lives[static_cast<size_t>(plan.root(id))];
      if (life.bytes == 0) {
        life.bytes =
            root.shape.elements() * static_cast<int64_t>(backend.element_bytes(root.dtype));
        life.first = i;
      }
      life.last = i;
      life.head |= step.op == Op::kHead;
    };
    for (ValueId in : step.inputs) touch(in);
    for (const Output& out : step.outputs) touch(out.value);
  }
  const std::vector<size_t> scratch = backend.select(plan).scratch_bytes();
  // Bytes that are alive at each step, from what begins and ends there.
  std::vector<int64_t> change(plan.steps.size() + 1, 0);
  for (const Life& life : lives) {
    if (life.bytes == 0) continue;
    change[life.first] += life.bytes;
    change[life.last + 1] -= life.bytes;
  }
  size_t fullest = 0;
  int64_t alive = 0, most = -1;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    alive += change[i];
    const int64_t with_scratch = alive + static_cast<int64_t>(scratch[i]);
    if (with_scratch <= most) continue;
    most = with_scratch;
    fullest = i;
  }
  ArenaParts parts;
  parts.workspace = plan.steps.empty() ? 0 : static_cast<int64_t>(scratch[fullest]);
  for (const Life& life : lives)
    if (life.head && life.first <= fullest && fullest <= life.last) parts.head += life.bytes;
  parts.activations = arena_bytes - parts.head - parts.workspace;
  return parts;
}

}  // namespace wick
