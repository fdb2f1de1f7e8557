// SPDX-License-Identifier: Apache-2.0
#include "model/weight_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "base/threads.h"
#include "quant/rows.h"

namespace wick {

namespace {

constexpr int64_t kTaskElements = 1 << 16;

// Calls f with a zero of the C++ type that holds the element type.
template <typename F>
void with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(0.0f);
    case DType::kBF16:
      return f(bf16{});
    case DType::kF16:
      return f(f16{});
    default:
      WICK_CHECK(false, dtype_name(dtype), " is no weight's element type");
  }
}

class PlainRows final : public RowReader {
 public:
  PlainRows(DType dtype, const std::byte* from, int64_t cols)
      : dtype_(dtype), from_(from), cols_(static_cast<size_t>(cols)) {}
  void read(int64_t row, float* to) const override {
    widen_floats(dtype_, from_ + static_cast<size_t>(row) * cols_ * dtype_bytes(dtype_), cols_, to);
  }

 private:
  DType dtype_;
  const std::byte* from_;
  size_t cols_;
};

class MlxRows final : public RowReader {
 public:
  MlxRows(const MlxTensor& t, int64_t cols) : t_(t), cols_(cols) {}
  void read(int64_t row, float* to) const override {
    mlx_dequantize_row(t_.bits, t_.group, t_.row(row, cols_), cols_, to);
  }

 private:
  const MlxTensor& t_;
  int64_t cols_;
};

}  // namespace

DType MlxTensor::dtype() const {
  std::optional<DType> codes = quantized_dtype(bits, group);
  return centred && codes ? *codes : DType::kBF16;
}

MlxRow MlxTensor::row(int64_t r, int64_t cols) const {
  const auto per_row = static_cast<size_t>(cols / group) * dtype_bytes(*scales.info->dtype);
  const auto at = static_cast<size_t>(r);
  return {words.bytes().data() + at * static_cast<size_t>(mlx_row_words(bits, cols)) * 4,
          scales.bytes().data() + at * per_row, biases.bytes().data() + at * per_row,
          *scales.info->dtype};
}

std::string mlx_beside(const std::string& tensor, const char* suffix) {
  return tensor.substr(0, tensor.size() - std::strlen("weight")) + suffix;
}

std::optional<MlxTensor> find_mlx_tensor(const SafetensorsSet& files, const std::string& where,
                                         const WeightSpec::Part& part) {
  if (part.shape.rank() != 2 || !part.tensor.ends_with(".weight")) return std::nullopt;
  MlxTensor t;
  t.words = files.find(part.tensor);
  t.scales = files.find(mlx_beside(part.tensor, "scales"));
  if (!t.words || !t.scales) return std::nullopt;
  t.biases = files.find(mlx_beside(part.tensor, "biases"));
  const int64_t n = part.shape[0], k = part.shape[1];
  const Shape &words = t.words.info->shape, &scales = t.scales.info->shape;
  if (!t.biases || t.words.info->type_name != "U32" || !is_float_tensor(*t.scales.info) ||
      t.biases.info->dtype != t.scales.info->dtype)
    fail(
        ErrorCode::kUnsupported, where, ": ", part.tensor,
        " is quantised in a way that wick does not read; it reads mlx's affine groups (weight U32, "
        "scales and biases)");
  const bool fits = words.rank() == 2 && scales.rank() == 2 && words[0] == n && scales[0] == n &&
                    words[1] > 0 && scales[1] > 0 && t.biases.info->shape == scales &&
                    words[1] * 32 % k == 0 && k % scales[1] == 0;
  if (!fits)
    fail(ErrorCode::kInvalidArgument, where, ": ", part.tensor, " ", words.str(), " with scales ",
         scales.str(), " and biases ", t.biases.info->shape.str(), " is not a quantised ",
         part.shape.str(), "; do config.json and the weights belong together?");
  t.bits = static_cast<int>(words[1] * 32 / k);
  t.group = k / scales[1];
  if (t.bits != 8 && t.bits != 4)
    fail(ErrorCode::kUnsupported, where, ": ", part.tensor, " has codes of ", t.bits,
         " bits; wick reads 8 and 4");
  auto promise = t.words.file->metadata().find(kCentredKey);
  t.centred = promise != t.words.file->metadata().end() && promise->second == kCentredValue;
  return t;
}

bool is_float_tensor(const TensorInfo& info) {
  return info.dtype == DType::kF32 || info.dtype == DType::kBF16 || info.dtype == DType::kF16;
}

std::unique_ptr<RowReader> plain_rows(DType dtype, const std::byte* from, int64_t cols) {
  return std::make_unique<PlainRows>(dtype, from, cols);
}

std::unique_ptr<RowReader> mlx_rows(const MlxTensor& tensor, int64_t cols) {
  return std::make_unique<MlxRows>(tensor, cols);
}

void put_row(DType type, const std::vector<float>& row, std::byte* to) {
  if (dtype_is_quantized(type))
    return quantize_row(type, row.data(), static_cast<int64_t>(row.size()), to);
  with_float_type(type, [&](auto element) {
    using T = decltype(element);
    for (size_t i = 0; i < row.size(); ++i) {
      T stored = from_float<T>(row[i]);
      std::memcpy(to + i * sizeof(T), &stored, sizeof(T));
    }
  });
}

void put_rows(const std::unique_ptr<RowReader>& from, DType type, int64_t rows, int64_t cols,
              std::byte* to) {
  const size_t stride = row_bytes(type, cols);
  const int64_t grain = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, cols));
  const int64_t tasks = (rows + grain - 1) / grain;
  ThreadPool pool(tasks > 1 ? 0 : 1);
  pool.parallel(tasks, [&](int64_t task) {
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = task * grain; r < std::min(rows, (task + 1) * grain); ++r) {
      from->read(r, row.data());
      put_row(type, row, to + static_cast<size_t>(r) * stride);
    }
  });
}

void widen_floats(DType dtype, const std::byte* from, size_t count, float* to) {
  with_float_type(dtype, [&](auto element) {
    using T = decltype(element);
    for (size_t i = 0; i < count; ++i) {
      T x;
      std::memcpy(&x, from + i * sizeof(T), sizeof(T));
      to[i] = to_float(x);
    }
  });
}

}  // namespace wick
