// SPDX-License-Identifier: Apache-2.0
// ModelWeights: the numbers of a model, from a folder or random, checked against its config, and
// their buffers on a device, each made once and shared by all programs.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "io/safetensors.h"
#include "model/config.h"
#include "model/decoder.h"

namespace wick {

// Whether files of a model that ties its head to the embedding have a head with other numbers.
bool has_own_head(const SafetensorsSet& files);

class ModelWeights {
 public:
  // Reads headers only. Throws: kNotFound, kCorruptFile; kInvalidArgument naming the tensor that is
  // missing, not expected or of another shape.
  static ModelWeights open(SafetensorsSet files, const std::string& where,
                           const ModelConfig& config);
  // Random with the config's initializer_range as deviation (model/random_weights.h); gains one,
  // biases zero.
  static ModelWeights random(const ModelConfig& config, uint64_t seed, DType dtype);

  // The type that programs over these weights compute in: f32 or bf16. Decided before the first
  // buffer() and the same for all of them, since they share the buffers.
  DType compute() const { return compute_; }
  void compute_in(DType compute) { compute_ = compute; }

  // Matrices rest in this quantised type instead of their own; vectors (gains, biases) as they are.
  // Decided before the first dtype() and buffer().
  void quantize_to(DType dtype) { quantize_ = dtype; }

  // For whoever only generates: matrices of bf16 rest in fewer bytes where the device can do that
  // without changing them (WeightForm::kShortTiles), which decoding reads faster and training does
  // not. Of buffers that are not made yet.
  void shorten(bool wanted) { short_ = wanted; }
  bool shortens() const { return short_; }

  // The element type a weight rests in: its tensors' own, or f32 where they differ. A matrix that
  // mlx quantised rests in our codes where they can hold it to the bit, else in bf16.
  DType dtype(const WeightSpec& spec) const;
  // In that element type, row-major, row_bytes() each. Throws: kCorruptFile for a value that is not
  // finite.
  std::vector<std::byte> read(const WeightSpec& spec) const { return read_as(spec, dtype(spec)); }
  // In another type, a row at a time.
  std::vector<std::byte> read_as(const WeightSpec& spec, DType type) const;
  std::vector<float> read_floats(const WeightSpec& spec) const;

  // The weight on a device, in the form that the back end chose for `value`. Requires: the same
  // back end and form for each call. Throws: kCancelled.
  BufferPtr buffer(const WeightSpec& spec, const Value& value, WeightForm form, Backend& backend);
  bool loaded() const { return !buffers_.empty(); }
  // Of the buffers there are: of one weight, 0 if it has none; of all.
  int64_t loaded_bytes(const std::string& name) const;
  int64_t loaded_bytes() const;
  // Asked before each weight is prepared: whether whoever waits wants no more of it. What is ready
  // by then stays.
  void stop_when(std::function<bool()> asked) { stop_ = std::move(asked); }
  // Throws: kCancelled. Also for others who go over the weights.
  void check_wanted() const;
  // Σ w² of each row, f32 [rows], of the numbers as they rest.
  BufferPtr squares(const WeightSpec& spec, Backend& backend);
  // Forgets the buffers; programs keep those that they use.
  void release() { buffers_.clear(); }

  const SafetensorsSet* files() const { return files_ ? &*files_ : nullptr; }
  // Of every tensor's name, type, shape and a few of its bytes, so that other weights of the same
  // shape are told apart without reading all of them.
  uint64_t fingerprint() const;

 private:
  void check(const ModelConfig& config) const;
  void check_finite(const SafetensorsSet::Found& found) const;
  DType own_dtype(const WeightSpec& spec) const;
  void read_part(const WeightSpec& spec, const WeightSpec::Part& part, DType type,
                 std::byte* to) const;

  std::optional<SafetensorsSet> files_;
  std::string where_;
  DType compute_ = DType::kF32;
  std::optional<DType> quantize_;
  bool short_ = false;
  uint64_t seed_ = 0;
  DType random_dtype_ = DType::kF32;
  double range_ = 0.02;
  std::map<std::string, BufferPtr> buffers_;
  std::function<bool()> stop_;
};

// While one is alive, reading weights asks whether to stop.
class StopWhileReading {
 public:
  StopWhileReading(ModelWeights& weights, std::function<bool()> asked) : weights_(weights) {
    weights_.stop_when(std::move(asked));
  }
  ~StopWhileReading() { weights_.stop_when({}); }
  StopWhileReading(const StopWhileReading&) = delete;
  StopWhileReading& operator=(const StopWhileReading&) = delete;

 private:
  ModelWeights& weights_;
};

}  // namespace wick
