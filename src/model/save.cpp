// SPDX-License-Identifier: Apache-2.0
#include "model/save.h"

#include <cstring>
#include <map>

#include "base/check.h"
#include "base/half.h"
#include "io/safetensors_writer.h"
#include "model/weight_rows.h"
#include "quant/mlx.h"

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

namespace {

DType saved_type(const WeightSpec& spec, DType own, std::optional<DType> dtype) {
  const DType plain = dtype_is_quantized(own) ? DType::kBF16 : own;
  if (!dtype) return plain;
  if (!dtype_is_quantized(*dtype)) return *dtype;
  const bool whole_groups = spec.shape.rank() == 2 && spec.shape.cols() % quant_group(*dtype) == 0;
  return whole_groups ? *dtype : plain;
}

void declare(SafetensorsWriter& writer, const WeightSpec::Part& part, DType type) {
  if (!dtype_is_quantized(type)) return writer.declare(part.tensor, type, part.shape);
  const int64_t rows = part.shape[0], cols = part.shape[1], groups = quant_groups(type, cols);
  writer.declare_words(part.tensor, {rows, mlx_row_words(quant_bits(type), cols)});
  for (const char* suffix : {"scales", "biases"})
    writer.declare(mlx_beside(part.tensor, suffix), DType::kBF16, {rows, groups});
}

void write_quantized(SafetensorsWriter& writer, const WeightSpec::Part& part, DType type,
                     const std::byte* from) {
  const int64_t rows = part.shape[0], cols = part.shape[1];
  const size_t count = static_cast<size_t>(rows);
  const size_t word_bytes = static_cast<size_t>(mlx_row_words(quant_bits(type), cols)) * 4;
  const size_t scale_bytes = static_cast<size_t>(quant_groups(type, cols)) * 2;
  std::vector<std::byte> words(count * word_bytes), scales(count * scale_bytes),
      biases(count * scale_bytes);
  for (size_t r = 0; r < count; ++r, from += row_bytes(type, cols))
    row_to_mlx(type, from, cols, words.data() + r * word_bytes, scales.data() + r * scale_bytes,
               biases.data() + r * scale_bytes);
  writer.write(part.tensor, words);
  writer.write(mlx_beside(part.tensor, "scales"), scales);
  writer.write(mlx_beside(part.tensor, "biases"), biases);
}

}  // namespace

int64_t saved_weight_bytes(const ModelConfig& config, const ModelWeights& weights,
                           std::optional<DType> dtype) {
  int64_t bytes = 0;
  for (const WeightSpec& spec : weight_specs(config)) {
    const DType to = saved_type(spec, weights.dtype(spec), dtype);
    for (const WeightSpec::Part& part : spec.parts)
      bytes += part.shape.rows() * static_cast<int64_t>(row_bytes(to, part.shape.cols()));
  }
  return bytes;
}

SavedWeights save_weights(const std::filesystem::path& folder, const ModelConfig& config,
                          const ModelWeights& weights, std::optional<DType> dtype,
                          const WeightOverride& changed, const std::function<bool()>& should_stop) {
  make_folder(folder);
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (dtype && dtype_is_quantized(*dtype))
    metadata = {{"format", "mlx"}, {kCentredKey, kCentredValue}};
  SafetensorsWriter writer(folder / "model.safetensors", metadata);
  const std::vector<WeightSpec> specs = weight_specs(config);
  SavedWeights saved;
  for (const WeightSpec& spec : specs) {
    const DType to = saved_type(spec, weights.dtype(spec), dtype);
    for (const WeightSpec::Part& part : spec.parts) {
      declare(writer, part, to);
      ++saved.tensors;
      saved.quantized += dtype_is_quantized(to);
    }
  }
  for (const WeightSpec& spec : specs) {
    if (should_stop && should_stop())
      fail(ErrorCode::kCancelled, "stopped; nothing was written to ", folder.string());
    const DType to = saved_type(spec, weights.dtype(spec), dtype);
    std::optional<std::vector<float>> values = changed ? changed(spec) : std::nullopt;
    if (values) saved.changed += static_cast<int64_t>(spec.parts.size());
    WICK_CHECK(!values || !dtype_is_quantized(to), spec.name);
    std::vector<std::byte> bytes = values ? narrow(*values, to) : weights.read_as(spec, to);
    size_t at = 0;
    for (const WeightSpec::Part& part : spec.parts) {
      size_t size = static_cast<size_t>(part.shape.rows()) * row_bytes(to, part.shape.cols());
      if (dtype_is_quantized(to))
        write_quantized(writer, part, to, bytes.data() + at);
      else
        writer.write(part.tensor, std::span(bytes).subspan(at, size));
      at += size;
    }
    saved.bytes += static_cast<int64_t>(bytes.size());
  }
  writer.commit();
  return saved;
}

}  // namespace wick
