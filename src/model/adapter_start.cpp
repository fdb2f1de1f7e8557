// SPDX-License-Identifier: Apache-2.0
#include "model/adapter_start.h"

namespace wick {

void start_adapter(Adapter& adapter, const ModelConfig& config, const ModelWeights& weights,
                   bool fresh, std::span<float> params) {
  if (!adapter.needs_weights() || (!fresh && adapter.frozen().empty())) return;
  const std::string ending = ".weight";
  for (const WeightSpec& spec : weight_specs(config)) {
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
      at += static_cast<size_t>(part.shape.elements());
    }
  }
}

}  // namespace wick
