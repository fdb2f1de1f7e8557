// SPDX-License-Identifier: Apache-2.0
#include "model/adapter_start.h"

#include <exception>
#include <mutex>

#include "base/threads.h"

namespace wick {

namespace {

// The modules of one weight's parts. Each has its own places in `params` and Adapter::frozen().
void start_parts(Adapter& adapter, const ModelConfig& config, const ModelWeights& weights,
                 const WeightSpec& spec, bool fresh, std::span<float> params) {
  const std::string ending = ".weight";
  std::vector<float> values;
  size_t at = 0;
  for (const WeightSpec::Part& part : spec.parts) {
    const auto start = [&](const std::string& module) {
      const LoraModule* m = adapter.find(module);
      const WholeModule* whole = fresh ? adapter.find_whole(module) : nullptr;
      const bool wanted = m && (m->a0_offset >= 0 || (fresh && m->m_offset >= 0));
      if (!wanted && !whole) return;
      if (values.empty()) values = weights.read_floats(spec);
      if (wanted) adapter.start_module(*m, values.data() + at, fresh, params);
      if (whole) adapter.start_whole(*whole, values.data() + at, params);
    };
    if (part.tensor.ends_with(ending)) {
      const std::string module = part.tensor.substr(0, part.tensor.size() - ending.size());
      start(module);
      if (adapter.tokens() && adapter.tokens()->module == module) {
        if (values.empty()) values = weights.read_floats(spec);
        adapter.start_tokens(values.data(), fresh, params);
      }
      if (config.tied && module == "model.embed_tokens") start("lm_head");
    }
    if (part.tensor.ends_with(".bias")) start(part.tensor);
    at += static_cast<size_t>(part.shape.elements());
  }
}

}  // namespace

void start_adapter(Adapter& adapter, const ModelConfig& config, const ModelWeights& weights,
                   bool fresh, std::span<float> params, int threads) {
  if (!adapter.needs_weights() || (!fresh && adapter.frozen().empty())) return;
  const std::vector<WeightSpec> specs = weight_specs(config);
  ThreadPool pool(threads);
  std::vector<std::exception_ptr> failed(specs.size());
  std::mutex asking;  // whoever is asked need not be ready for several threads
  pool.parallel(static_cast<int64_t>(specs.size()), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    try {
      {
        const std::lock_guard alone(asking);
        weights.check_wanted();
      }
      start_parts(adapter, config, weights, specs[at], fresh, params);
    } catch (...) {
      failed[at] = std::current_exception();
    }
  });
  for (const std::exception_ptr& e : failed)
    if (e) std::rethrow_exception(e);
}

}  // namespace wick
