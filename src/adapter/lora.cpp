// SPDX-License-Identifier: Apache-2.0
#include "adapter/lora.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/rng.h"
#include "base/threads.h"

namespace wick {

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

bool module_matches(const std::string& module, const std::string& target) {
  if (module == target) return true;
  return module.size() > target.size() + 1 &&
         module.compare(module.size() - target.size(), target.size(), target) == 0 &&
         module[module.size() - target.size() - 1] == '.';
}

Adapter Adapter::create(const LoraOptions& options, std::span<const LinearInfo> linears) {
  if (options.rank < 1)
    fail(ErrorCode::kInvalidArgument, "--rank is ", options.rank, ", wanted at least 1");
  if (!(options.dropout >= 0.0f && options.dropout < 1.0f))
    fail(ErrorCode::kInvalidArgument, "--lora-dropout is ", options.dropout, ", wanted 0 <= p < 1");
  if (options.targets.empty())
    fail(ErrorCode::kInvalidArgument,
         "--targets is empty; name linears such as q_proj,v_proj or "
         "all-linear");
  int64_t layers = 0;
  for (const LinearInfo& l : linears) layers = std::max(layers, l.layer + 1);
  if (options.num_layers > layers)
    fail(ErrorCode::kInvalidArgument, "--num-layers is ", options.num_layers,
         ", but the model has ", layers, " layers; use -1 for all");
  // 0 means all as well, as users of mlx-lm know it.
  int64_t first_layer = options.num_layers > 0 ? layers - options.num_layers : 0;

  for (const std::string& target : options.targets) {
    if (target == "all-linear") continue;
    bool known = false;
    for (const LinearInfo& l : linears) known |= module_matches(l.module, target);
    if (known) continue;
    std::set<std::string> names{"all-linear"};
    for (const LinearInfo& l : linears) names.insert(last_part(l.module));
    std::string near = nearest_name(target, names), all;
    for (const std::string& n : names) all += (all.empty() ? "" : ", ") + n;
    fail(ErrorCode::kInvalidArgument, "--targets: the model has no linear called ", target,
         near.empty() ? "" : cat("; did you mean ", near, "?"), " (there are ", all, ")");
  }

  Adapter adapter;
  adapter.options_ = options;
  for (const LinearInfo& l : linears) {
    bool wanted = false;
    for (const std::string& target : options.targets)
      wanted |= target == "all-linear" || module_matches(l.module, target);
    if (!wanted || l.layer < first_layer) continue;
    LoraModule m{l};
    m.rank = options.rank;
    float r = static_cast<float>(options.rank);
    m.scale = options.alpha / (options.rslora ? std::sqrt(r) : r);
    m.dropout = options.dropout;
    adapter.modules_.push_back(std::move(m));
  }
  WICK_CHECK(!adapter.modules_.empty(), "no linear is left to adapt");
  adapter.place();
  return adapter;
}

void Adapter::place() {
  for (size_t i = 0; i < modules_.size();) {
    size_t end = i;
    while (end < modules_.size() && modules_[end].group == modules_[i].group) ++end;
    for (size_t k = i; k < end; ++k)
      modules_[k].a_offset =
          layout_.add(modules_[k].module + ".lora_A", {modules_[k].rank, modules_[k].in});
    for (size_t k = i; k < end; ++k)
      modules_[k].b_offset =
          layout_.add(modules_[k].module + ".lora_B", {modules_[k].out, modules_[k].rank});
    i = end;
  }
  for (LoraModule& m : modules_) m.site = name_key(m.module);
}

std::vector<float> Adapter::initial_params(uint64_t seed) const {
  std::vector<float> params(static_cast<size_t>(param_count()), 0.0f);
  for (const LoraModule& m : modules_) {
    Rng rng(mix_key(seed, name_key(m.module)));
    float bound = 1.0f / std::sqrt(static_cast<float>(m.in));
    for (int64_t i = 0; i < m.rank * m.in; ++i)
      params[static_cast<size_t>(m.a_offset + i)] = rng.uniform(-bound, bound);
  }
  return params;
}

const LoraModule* Adapter::find(const std::string& module) const {
  for (const LoraModule& m : modules_)
    if (m.module == module) return &m;
  return nullptr;
}

void Adapter::merge(const LoraModule& m, std::span<const float> params, float* w,
                    ThreadPool& pool) const {
  const float* a = params.data() + m.a_offset;
  const float* b = params.data() + m.b_offset;
  constexpr int64_t kRows = 16, kColumns = 512;  // of a task; of A, while they are in the caches
  pool.parallel((m.out + kRows - 1) / kRows, [&](int64_t task) {
    float sums[kColumns];
    for (int64_t c = 0; c < m.in; c += kColumns) {
      const int64_t n = std::min(kColumns, m.in - c);
      for (int64_t o = task * kRows; o < std::min(m.out, (task + 1) * kRows); ++o) {
        std::fill_n(sums, n, 0.0f);
        for (int64_t r = 0; r < m.rank; ++r) {
          const float factor = b[o * m.rank + r], *from = a + r * m.in + c;
          for (int64_t i = 0; i < n; ++i) sums[i] += factor * from[i];
        }
        float* to = w + o * m.in + c;
        for (int64_t i = 0; i < n; ++i) to[i] += m.scale * sums[i];
      }
    }
  });
}

}  // namespace wick
