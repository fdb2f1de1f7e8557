// SPDX-License-Identifier: Apache-2.0
#include "model/adapter_start.h"

#include <cmath>
#include <exception>
#include <mutex>

#include "base/check.h"
#include "base/half.h"
#include "base/threads.h"
#include "model/weight_rows.h"

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

// PEFT puts such a table into the model that it loads, so rows that were set before training (of
// new tokens, say) are a part of the adapter there. wick reads the base's own only.
void check_base_copy(const BaseCopy& copy, const ModelConfig& config, const ModelWeights& weights) {
  // A copy may have been rounded to bf16 or f16 on its way.
  constexpr float kRelative = 1.0f / 128, kAbsolute = 1e-6f;
  // Codes of 4 bits in groups of 128 put a row off by about 0.15 of its length.
  constexpr double kOfCodes = 0.4;
  const std::string own =
      (config.tied && copy.module == "lm_head" ? "model.embed_tokens" : copy.module) + ".weight";
  const SafetensorsFile file(copy.file);
  const TensorInfo& info = *file.find(copy.tensor);
  const auto cols = static_cast<size_t>(info.shape[1]);
  const size_t stride = cols * dtype_bytes(*info.dtype), own_stride = cols * sizeof(bf16);
  for (const WeightSpec& spec : weight_specs(config)) {
    if (spec.name != own) continue;
    const std::vector<std::byte> base = weights.read_as(spec, DType::kBF16);
    const bool codes =
        weights.files() && find_mlx_tensor(*weights.files(), own, spec.parts.front());
    std::vector<float> theirs(cols), ours(cols);
    for (size_t row = 0; row < static_cast<size_t>(info.shape[0]); ++row) {
      widen_floats(*info.dtype, file.bytes(info).data() + row * stride, cols, theirs.data());
      widen_floats(DType::kBF16, base.data() + row * own_stride, cols, ours.data());
      bool same = true;
      double apart = 0, length = 0;
      for (size_t i = 0; i < cols; ++i) {
        const float by = std::abs(theirs[i] - ours[i]);
        same = same && by <= kRelative * std::abs(ours[i]) + kAbsolute;
        apart += static_cast<double>(by) * by;
        length += static_cast<double>(theirs[i]) * theirs[i];
      }
      if (codes)
        same = std::isfinite(apart) && std::sqrt(apart) <= kOfCodes * std::sqrt(length) + kAbsolute;
      if (!same)
        fail(ErrorCode::kInvalidArgument, copy.file.string(), ": ", copy.tensor,
             " is not the model's own: row ", row,
             " is another. The adapter was trained beside "
             "this table; use the model that has it, or merge them with PEFT (merge_and_unload)");
    }
  }
}

}  // namespace

void start_adapter(Adapter& adapter, const ModelConfig& config, const ModelWeights& weights,
                   bool fresh, std::span<float> params, int threads) {
  for (const BaseCopy& copy : adapter.base_copies()) check_base_copy(copy, config, weights);
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
