// SPDX-License-Identifier: Apache-2.0
// Bound by passes over the vocabulary: a draw makes three to five of them, each a plain loop. No
// filter sorts: cut-offs are found with a histogram over the leading bits of the weights, which
// stays in the first cache.
#include "infer/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace wick {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 8;
constexpr size_t kBlock = 1024;

// The sum of a block in a fixed order that vectorises.
double block_sum(const float* x, size_t n) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j];
  for (; i < n; ++i) lanes[0] += x[i];
  double sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

double sum_of(const std::vector<float>& x) {
  double sum = 0;
  for (size_t b = 0; b < x.size(); b += kBlock)
    sum += block_sum(x.data() + b, std::min(kBlock, x.size() - b));
  return sum;
}

// weights[i] = e^((logits[i] - max) * inverse_temperature), 0 for NaN.
void weigh(std::span<const float> logits, float max, float inverse_temperature,
           std::vector<float>& weights) {
  weights.resize(logits.size());
  wick::weigh(logits, max, inverse_temperature, weights.data());
}

// Weights that are looked at together: where few tokens are likely, most groups have none.
constexpr size_t kGroup = 16;
bool any_reaches(const float* weights, float least) {
  int32_t found = 0;
  for (size_t i = 0; i < kGroup; ++i) found |= weights[i] >= least;
  return found != 0;
}

double weight_of(const std::vector<TokenWeight>& candidates) {
  double sum = 0;
  for (const TokenWeight& c : candidates) sum += c.weight;
  return sum;
}

// A cut through the candidates in order of their weight: all above `weight` stay, and the first
// `equals` of those that have it.
struct Cut {
  float weight = 0;
  int64_t equals = 0;
};

// Keeps those of which `keep` says so; without branches, for nobody can predict them.
template <typename Keep>
void keep_if(std::vector<TokenWeight>& candidates, Keep&& keep) {
  size_t kept = 0;
  for (const TokenWeight& c : candidates) {
    bool stays = keep(c);
    candidates[kept] = c;
    kept += stays;
  }
  candidates.resize(kept);
}

void apply(std::vector<TokenWeight>& candidates, Cut cut) {
  keep_if(candidates, [&](const TokenWeight& c) {
    bool equal = c.weight == cut.weight;
    cut.equals -= equal;
    return (c.weight > cut.weight) | (equal & (cut.equals >= 0));
  });
}

// The cut that keeps the fewest candidates, likeliest first, so that there are at least `count` of
// them and they weigh at least `mass`; or all.
//
// Weights are not negative, so their bits order as they do. A histogram finds the leading bits of
// the cut, and three more the others among the weights that share those, until few are left: time
// is linear however flat the distribution is.
Cut find_cut(const std::vector<TokenWeight>& candidates, int64_t count, double mass) {
  struct Bucket {
    int64_t count = 0;
    double mass = 0;
  };
  // Leading bits that a histogram tells apart: exponent and four more, then eight at a time.
  constexpr int kShifts[] = {19, 11, 3, 0};
  // Neighbours add to different histograms, so that one add need not wait for the last.
  constexpr size_t kCopies = 4;
  constexpr size_t kSortable = 256;

  std::vector<float> weights(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) weights[i] = candidates[i].weight;
  std::vector<Bucket> buckets;
  Bucket above;
  for (const int shift : kShifts) {
    if (weights.size() <= kSortable) break;
    auto bits_of = [&](float weight) { return std::bit_cast<uint32_t>(weight) >> shift; };
    uint32_t low = ~0u, high = 0;
    for (const float weight : weights) {
      low = std::min(low, std::bit_cast<uint32_t>(weight));
      high = std::max(high, std::bit_cast<uint32_t>(weight));
    }
    low >>= shift;
    high >>= shift;
    buckets.assign(kCopies * (high - low + 1), Bucket());
    for (size_t i = 0; i < weights.size(); ++i) {
      Bucket& bucket = buckets[(bits_of(weights[i]) - low) * kCopies + i % kCopies];
      ++bucket.count;
      bucket.mass += weights[i];
    }
    uint32_t chosen = low;
    Bucket above_chosen;
    for (uint32_t b = high - low + 1; b-- > 0;) {
      Bucket sum;
      for (size_t j = 0; j < kCopies; ++j) {
        sum.count += buckets[b * kCopies + j].count;
        sum.mass += buckets[b * kCopies + j].mass;
      }
      if (sum.count == 0) continue;
      chosen = low + b;
      above_chosen = above;
      above.count += sum.count;
      above.mass += sum.mass;
      if (above.count >= count && above.mass >= mass) break;
    }
    // Sums rounded in another order may end just below the mass: then all that there is.
    mass = std::min(mass, above.mass);
    above = above_chosen;
    std::erase_if(weights, [&](float weight) { return bits_of(weight) != chosen; });
  }
  // Few are left, or only equal ones.
  if (weights.size() <= kSortable) std::sort(weights.begin(), weights.end(), std::greater<>());
  Cut cut;
  for (float weight : weights) {
    if (above.count >= count && above.mass >= mass) break;
    cut.equals = weight == cut.weight ? cut.equals + 1 : 1;
    cut.weight = weight;
    ++above.count;
    above.mass += weight;
  }
  return cut;
}

void keep_mass(std::vector<TokenWeight>& candidates, double mass, int min_keep) {
  apply(candidates, find_cut(candidates, min_keep, mass));
}

void check(bool good, const char* name, double given, const char* wanted) {
  if (!good) fail(ErrorCode::kInvalidArgument, name, " is ", given, ", expected ", wanted);
}

}  // namespace

void keep_top_k(std::vector<TokenWeight>& candidates, int k) {
  if (k <= 0 || static_cast<size_t>(k) >= candidates.size()) return;
  apply(candidates, find_cut(candidates, k, 0));
}

void keep_top_p(std::vector<TokenWeight>& candidates, float p, int min_keep) {
  if (p < 1) keep_mass(candidates, p * weight_of(candidates), min_keep);
}

void keep_min_p(std::vector<TokenWeight>& candidates, float p, int min_keep) {
  if (p <= 0 || candidates.empty()) return;
  float most = 0;
  for (const TokenWeight& c : candidates) most = std::max(most, c.weight);
  float least = p * most;
  auto kept = std::count_if(candidates.begin(), candidates.end(),
                            [&](const TokenWeight& c) { return c.weight >= least; });
  if (kept < min_keep) {
    keep_top_k(candidates, min_keep);
  } else {
    keep_if(candidates, [&](const TokenWeight& c) { return c.weight >= least; });
  }
}

void drop_top_choices(std::vector<TokenWeight>& candidates, float threshold,
                      std::span<const int32_t> spared) {
  double bound = static_cast<double>(threshold) * weight_of(candidates);
  float least = kInfinity;
  for (const TokenWeight& c : candidates)
    if (c.weight > bound) least = std::min(least, c.weight);
  std::erase_if(candidates, [&](const TokenWeight& c) {
    return c.weight > least && std::find(spared.begin(), spared.end(), c.id) == spared.end();
  });
}

Sampler::Sampler(SampleOptions options, int64_t vocab)
    : options_(std::move(options)), vocab_(vocab) {
  const SampleOptions& o = options_;
  check(vocab > 0 && vocab <= std::numeric_limits<int32_t>::max(), "the vocabulary's size",
        static_cast<double>(vocab), "1 or more");
  check(o.temperature >= 0 && o.temperature < kInfinity, "temperature", o.temperature,
        "0 (greedy) or more");
  check(o.top_k >= 0, "top_k", o.top_k, "0 (off) or more");
  check(o.top_p > 0 && o.top_p <= 1, "top_p", o.top_p, "above 0, at most 1 (off)");
  check(o.min_p >= 0 && o.min_p <= 1, "min_p", o.min_p, "0 (off) to 1");
  check(o.xtc_probability >= 0 && o.xtc_probability <= 1, "xtc_probability", o.xtc_probability,
        "0 (off) to 1");
  check(o.xtc_threshold >= 0 && o.xtc_threshold <= 0.5f, "xtc_threshold", o.xtc_threshold,
        "0 to 0.5");
  check(o.min_tokens_to_keep >= 1, "min_tokens_to_keep", o.min_tokens_to_keep, "1 or more");
  check(o.repetition_penalty > 0 && o.repetition_penalty < kInfinity, "repetition_penalty",
        o.repetition_penalty, "above 0, 1 being off");
  check(std::isfinite(o.presence_penalty), "presence_penalty", o.presence_penalty, "a number");
  check(std::isfinite(o.frequency_penalty), "frequency_penalty", o.frequency_penalty, "a number");
  check(o.repetition_context >= 0, "repetition_context", o.repetition_context,
        "0 (all of the history) or more");
  check(o.presence_context >= 0, "presence_context", o.presence_context,
        "0 (all of the history) or more");
  check(o.frequency_context >= 0, "frequency_context", o.frequency_context,
        "0 (all of the history) or more");
  for (const auto& [id, bias] : o.logit_bias) {
    if (id < 0 || id >= vocab)
      fail(ErrorCode::kInvalidArgument, "logit_bias names token ", id, ", expected 0 to ",
           vocab - 1);
    if (!(bias < kInfinity))
      fail(ErrorCode::kInvalidArgument, "logit_bias of token ", id, " is ", bias,
           ", expected a number or minus infinity");
  }
  filters_ = o.top_k > 0 || o.top_p < 1 || o.min_p > 0 || o.xtc_probability > 0;
  counts_.assign(static_cast<size_t>(vocab), 0);
}

// f(id, count) for every distinct token of the last `context` of the history.
template <typename F>
void Sampler::for_each_seen(std::span<const int32_t> history, int context, F&& f) {
  auto wanted = static_cast<size_t>(context);
  if (wanted > 0 && history.size() > wanted) history = history.last(wanted);
  seen_.clear();
  for (int32_t id : history) {
    if (id < 0 || id >= vocab_) continue;
    if (counts_[static_cast<size_t>(id)]++ == 0) seen_.push_back(id);
  }
  for (int32_t id : seen_)
    f(static_cast<size_t>(id), std::exchange(counts_[static_cast<size_t>(id)], 0));
}

void Sampler::process(std::span<float> logits, std::span<const int32_t> history) {
  WICK_CHECK(static_cast<int64_t>(logits.size()) == vocab_, logits.size(), " logits, expected ",
             vocab_);
  for (const auto& [id, bias] : options_.logit_bias) logits[static_cast<size_t>(id)] += bias;
  if (float penalty = options_.repetition_penalty; penalty != 1)
    for_each_seen(history, options_.repetition_context, [&](size_t id, int32_t) {
      logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    });
  if (float penalty = options_.presence_penalty; penalty != 0)
    for_each_seen(history, options_.presence_context,
                  [&](size_t id, int32_t) { logits[id] -= penalty; });
  if (float penalty = options_.frequency_penalty; penalty != 0)
    for_each_seen(history, options_.frequency_context, [&](size_t id, int32_t count) {
      logits[id] -= penalty * static_cast<float>(count);
    });
}

uint64_t Sampler::key() const { return mix_key(options_.seed, kSampleStream); }

std::optional<DrawHow> Sampler::draws() const {
  const SampleOptions& o = options_;
  if (!o.logit_bias.empty() || o.repetition_penalty != 1 || o.presence_penalty != 0 ||
      o.frequency_penalty != 0)
    return std::nullopt;
  if (o.temperature == 0) return DrawHow();
  if (o.xtc_probability > 0 || o.min_tokens_to_keep > 1) return std::nullopt;
  return DrawHow{.temperature = o.temperature,
                 .top_k = o.top_k,
                 .top_p = o.top_p,
                 .min_p = o.min_p,
                 .key = key()};
}

void Sampler::fail_without_numbers() {
  fail(
      ErrorCode::kInvalidArgument,
      "no logit is a number above minus infinity; are there NaNs in the weights or the adapter, or "
      "does logit_bias ban every token?");
}

int32_t Sampler::sample(std::span<float> logits, std::span<const int32_t> history, int64_t position,
                        float* logprob) {
  process(logits, history);
  // Comparisons with NaN are false, so NaN never wins; eight running maxima so that it vectorises.
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -kInfinity);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (size_t j = 0; j < kLanes; ++j)
      lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
  for (; i < logits.size(); ++i) lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  float max = *std::max_element(lanes, lanes + kLanes);
  if (max == -kInfinity) fail_without_numbers();

  int32_t id;
  if (options_.temperature == 0 || max == kInfinity) {
    id = static_cast<int32_t>(std::find(logits.begin(), logits.end(), max) - logits.begin());
  } else if (filters_) {
    id = draw_filtered(logits, max, position);
  } else {
    id = draw_unfiltered(logits, max, position);
  }
  if (logprob != nullptr) {
    if (max == kInfinity) {
      *logprob = 0;
    } else {
      weigh(logits, max, 1, weights_);
      *logprob =
          logits[static_cast<size_t>(id)] - max - static_cast<float>(std::log(sum_of(weights_)));
    }
  }
  return id;
}

int32_t Sampler::draw_unfiltered(std::span<const float> logits, float max, int64_t position) {
  weigh(logits, max, inverse_temperature(options_.temperature), weights_);
  double left = random_draw(key(), position).where * sum_of(weights_);
  size_t last = 0;  // rounding may carry `left` past the end: then the last possible token
  for (size_t b = 0; b < weights_.size(); b += kBlock) {
    size_t n = std::min(kBlock, weights_.size() - b);
    double sum = block_sum(weights_.data() + b, n);
    if (left >= sum) {
      left -= sum;
      if (sum > 0) last = b;
      continue;
    }
    for (size_t i = b; i < b + n; ++i) {
      if (weights_[i] <= 0) continue;
      last = i;
      if (left < weights_[i]) return static_cast<int32_t>(i);
      left -= weights_[i];
    }
  }
  while (last < weights_.size() && weights_[last] <= 0) ++last;
  return static_cast<int32_t>(last);
}

// A weight below which no candidate passes the first of the filters that is on. Spares them most of
// the vocabulary.
float Sampler::least_weight_of_interest(double total) {
  const SampleOptions& o = options_;
  float least = std::numeric_limits<float>::min();
  constexpr size_t kSpan = 64;
  size_t groups = weights_.size() / kSpan;
  if (o.top_k > 0) {
    // The k-th largest of the groups' maxima: at least k weights reach it.
    auto k = static_cast<size_t>(o.top_k);
    if (k > groups) return least;
    maxima_.resize(groups);
    for (size_t g = 0; g < groups; ++g) {
      const float* x = weights_.data() + g * kSpan;
      float lanes[kLanes] = {};
      for (size_t i = 0; i < kSpan; i += kLanes)
        for (size_t j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
      maxima_[g] = *std::max_element(lanes, lanes + kLanes);
    }
    auto kth = maxima_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(maxima_.begin(), kth, maxima_.end(), std::greater<>());
    return std::max(least, *kth);
  }
  if (o.min_tokens_to_keep > 1) return least;
  if (o.top_p < 1) {
    // All weights below it together are less than what top-p may leave out, with room for rounding.
    double bound = 0.999 * (1 - static_cast<double>(o.top_p)) * total;
    return std::max(least, static_cast<float>(bound / static_cast<double>(weights_.size())));
  }
  return std::max(least, o.min_p);
}

// The candidates of at least that weight.
void Sampler::gather(float least) {
  candidates_.clear();
  TokenWeight block[kBlock];
  for (size_t b = 0; b < weights_.size(); b += kBlock) {
    size_t kept = 0;
    const size_t end = std::min(b + kBlock, weights_.size());
    for (size_t g = b; g < end; g += kGroup) {
      const size_t last = std::min(g + kGroup, end);
      if (last == g + kGroup && !any_reaches(weights_.data() + g, least)) continue;
      for (size_t i = g; i < last; ++i) {
        block[kept] = {static_cast<int32_t>(i), weights_[i]};
        kept += weights_[i] >= least;
      }
    }
    candidates_.insert(candidates_.end(), block, block + kept);
  }
}

int32_t Sampler::draw_filtered(std::span<const float> logits, float max, int64_t position) {
  const SampleOptions& o = options_;
  weigh(logits, max, 1, weights_);
  double total = sum_of(weights_);
  gather(least_weight_of_interest(total));
  if (o.top_k > 0) {
    keep_top_k(candidates_, o.top_k);
    total = weight_of(candidates_);
  }
  if (o.top_p < 1) keep_mass(candidates_, o.top_p * total, o.min_tokens_to_keep);
  keep_min_p(candidates_, o.min_p, o.min_tokens_to_keep);
  RandomDraw draw = random_draw(key(), position);
  if (draw.coin < o.xtc_probability) drop_top_choices(candidates_, o.xtc_threshold, o.xtc_special);

  kept_.resize(candidates_.size());
  float kept_max = -kInfinity;
  for (size_t i = 0; i < kept_.size(); ++i) {
    kept_[i] = logits[static_cast<size_t>(candidates_[i].id)];
    kept_max = std::max(kept_max, kept_[i]);
  }
  weigh(kept_, kept_max, inverse_temperature(o.temperature), weights_);
  double sum = 0;
  for (const float weight : weights_) sum += weight;
  double left = draw.where * sum;
  int32_t last = candidates_.front().id;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] <= 0) continue;
    last = candidates_[i].id;
    if (left < weights_[i]) break;
    left -= weights_[i];
  }
  return last;
}

}  // namespace wick
