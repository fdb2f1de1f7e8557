// SPDX-License-Identifier: Apache-2.0
// Where the rows of a weight come from: a file's floats, mlx's quantised groups, or random numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "model/decoder.h"
#include "quant/mlx.h"

namespace wick {

// In the metadata of a safetensors file: every bias of its quantised matrices is -scale *
// 2^(bits - 1) and every scale a bf16, so that wick reads them back to the bit (quant/mlx.h).
constexpr const char* kCentredKey = "wick_quantization";
constexpr const char* kCentredValue = "symmetric";

// A matrix that mlx quantised: three tensors (quant/mlx.h).
struct MlxTensor {
  SafetensorsSet::Found words, scales, biases;
  int bits = 0;
  int64_t group = 0;
  bool centred = false;  // the file promises that our rows can hold it to the bit

  // The type it rests in: our own codes, or what mlx itself computes with.
  DType dtype() const;
  MlxRow row(int64_t r, int64_t cols) const;
};

// The tensors beside NAME.weight: mlx_beside("NAME.weight", "scales").
std::string mlx_beside(const std::string& tensor, const char* suffix);

// None where the part is not quantised. Throws: kUnsupported, kInvalidArgument naming the tensor.
std::optional<MlxTensor> find_mlx_tensor(const SafetensorsSet& files, const std::string& where,
                                         const WeightSpec::Part& part);

bool is_float_tensor(const TensorInfo& info);

// Reads the rows of one matrix as floats, in any order, from several threads.
class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual void read(int64_t row, float* to) const = 0;
};

// What they read from must outlive them.
std::unique_ptr<RowReader> plain_rows(DType dtype, const std::byte* from, int64_t cols);
std::unique_ptr<RowReader> mlx_rows(const MlxTensor& tensor, int64_t cols);

// A row in a float or quantised type, row_bytes() of it.
void put_row(DType type, const std::vector<float>& row, std::byte* to);
// All of them, by all threads.
void put_rows(const std::unique_ptr<RowReader>& from, DType type, int64_t rows, int64_t cols,
              std::byte* to);
void widen_floats(DType dtype, const std::byte* from, size_t count, float* to);

}  // namespace wick
