// SPDX-License-Identifier: Apache-2.0
#include "model/save.h"

#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "io/safetensors_writer.h"

namespace wick {

std::vector<std::byte> narrow(std::span<const float> values, DType dtype) {
  std::vector<std::byte> out(values.size() * dtype_bytes(dtype));
  auto convert = [&](auto element) {
    using T = decltype(element);
    for (size_t i = 0; i < values.size(); ++i) {
      T x = from_float<T>(values[i]);
      std::memcpy(out.data() + i * sizeof(T), &x, sizeof(T));
    }
  };
  switch (dtype) {
    case DType::kF32:
      convert(0.0f);
      break;
    case DType::kBF16:
      convert(bf16{});
      break;
    case DType::kF16:
      convert(f16{});
      break;
    default:
      WICK_CHECK(false, dtype_name(dtype), " is no weight's element type");
  }
  return out;
}

SavedWeights save_weights(const std::filesystem::path& folder, const ModelConfig& config,
                          const ModelWeights& weights, std::optional<DType> dtype,
                          const WeightOverride& changed) {
  make_folder(folder);
  SafetensorsWriter writer(folder / "model.safetensors");
  const std::vector<WeightSpec> specs = weight_specs(config);
  SavedWeights saved;
  for (const WeightSpec& spec : specs)
    for (const WeightSpec::Part& part : spec.parts) {
      writer.declare(part.tensor, dtype.value_or(weights.dtype(spec)), part.shape);
      ++saved.tensors;
    }
  for (const WeightSpec& spec : specs) {
    const DType own = weights.dtype(spec), to = dtype.value_or(own);
    std::vector<std::byte> bytes;
    std::optional<std::vector<float>> values = changed ? changed(spec) : std::nullopt;
    if (values) saved.changed += static_cast<int64_t>(spec.parts.size());
    if (!values && to != own) values = weights.read_floats(spec);
    bytes = values ? narrow(*values, to) : weights.read(spec);
    size_t at = 0;
    for (const WeightSpec::Part& part : spec.parts) {
      size_t size = static_cast<size_t>(part.shape.elements()) * dtype_bytes(to);
      writer.write(part.tensor, std::span(bytes).subspan(at, size));
      at += size;
    }
    saved.bytes += static_cast<int64_t>(bytes.size());
  }
  writer.commit();
  return saved;
}

}  // namespace wick
