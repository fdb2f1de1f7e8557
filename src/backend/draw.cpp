// SPDX-License-Identifier: Apache-2.0
#include "backend/draw.h"

#include <cmath>
#include <limits>
#include <vector>

namespace wick {

void to_words(const DrawHow& how, int32_t* words) {
  words[0] = std::bit_cast<int32_t>(how.temperature);
  words[1] = how.top_k;
  words[2] = std::bit_cast<int32_t>(how.top_p);
  words[3] = std::bit_cast<int32_t>(how.min_p);
  words[4] = static_cast<int32_t>(static_cast<uint32_t>(how.key));
  words[5] = static_cast<int32_t>(static_cast<uint32_t>(how.key >> 32));
  words[6] = how.position;
  words[7] = 0;
}

DrawHow draw_how(const int32_t* words) {
  return {.temperature = std::bit_cast<float>(words[0]),
          .top_k = words[1],
          .top_p = std::bit_cast<float>(words[2]),
          .min_p = std::bit_cast<float>(words[3]),
          .key = static_cast<uint64_t>(static_cast<uint32_t>(words[5])) << 32 |
                 static_cast<uint32_t>(words[4]),
          .position = words[6]};
}

int32_t draw_token(std::span<const float> logits, const DrawHow& how) {
  struct Weighed {
    int32_t id;
    float weight;
  };
  int32_t best = -1;
  float most = -std::numeric_limits<float>::infinity();
  for (size_t v = 0; v < logits.size(); ++v)
    if (logits[v] > most) {
      most = logits[v];
      best = static_cast<int32_t>(v);
    }
  if (best < 0 || how.temperature <= 0 || std::isinf(most)) return best;

  std::vector<Weighed> kept;
  double total = 0;
  for (size_t v = 0; v < logits.size(); ++v) {
    const float weight = exp_negative(logits[v] - most);
    if (weight < std::numeric_limits<float>::min()) continue;
    kept.push_back({static_cast<int32_t>(v), weight});
    total += weight;
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Weighed& a, const Weighed& b) { return a.weight > b.weight; });
  if (how.top_k > 0 && static_cast<size_t>(how.top_k) < kept.size()) {
    kept.resize(static_cast<size_t>(how.top_k));
    total = 0;
    for (const Weighed& w : kept) total += w.weight;
  }
  if (how.top_p < 1) {
    const double mass = how.top_p * total;
    double sum = 0;
    size_t count = 0;
    while (count < kept.size() && (count == 0 || sum < mass)) sum += kept[count++].weight;
    kept.resize(count);
  }
  std::erase_if(kept, [&](const Weighed& w) { return w.weight < how.min_p; });
  std::sort(kept.begin(), kept.end(),
            [](const Weighed& a, const Weighed& b) { return a.id < b.id; });

  double sum = 0;
  for (Weighed& w : kept) {
    w.weight = exp_negative((logits[static_cast<size_t>(w.id)] - most) *
                            inverse_temperature(how.temperature));
    sum += w.weight;
  }
  double left = random_draw(how.key, how.position).where * sum;
  int32_t last = best;
  for (const Weighed& w : kept) {
    if (w.weight <= 0) continue;
    last = w.id;
    if (left < w.weight) break;
    left -= w.weight;
  }
  return last;
}

}  // namespace wick
