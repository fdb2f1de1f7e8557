// SPDX-License-Identifier: Apache-2.0
#include "train/pack_work.h"

#include <algorithm>
#include <map>

namespace wick {

double attended(const Pack& pack, int64_t window) {
  double rows = 0;
  for (const Pack::Slots& s : pack.slots)
    for (auto t = static_cast<size_t>(s.first); t < static_cast<size_t>(s.first + s.count); ++t) {
      const int64_t all = pack.end[t] - pack.begin[t];
      rows += static_cast<double>(window > 0 ? std::min(window, all) : all);
    }
  return rows;
}

Filling pack_filling(const Pack& pack) {
  // Every layer asks again, mostly for the same window.
  return {[&pack, known = std::map<int64_t, double>()](int64_t window) mutable {
            const auto [found, is_new] = known.try_emplace(window);
            if (is_new) found->second = attended(pack, window);
            return found->second;
          },
          static_cast<double>(pack.used_targets)};
}

double pack_work(const Plan& plan, const Pack& pack) {
  return plan_flops(plan, pack_filling(pack));
}

}  // namespace wick
