// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <cmath>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/half.h"
#include "model/random_weights.h"

namespace wick {

namespace {

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

void widen(DType dtype, const std::byte* from, size_t count, float* to) {
  with_float_type(dtype, [&](auto element) {
    using T = decltype(element);
    for (size_t i = 0; i < count; ++i) {
      T x;
      std::memcpy(&x, from + i * sizeof(T), sizeof(T));
      to[i] = to_float(x);
    }
  });
}

// The first element that is no finite number, or -1. Looks at exponent bits, so it keeps up with
// the disk.
int64_t first_not_finite(DType dtype, const std::byte* data, size_t count) {
  auto scan = [&](auto mask) -> int64_t {
    using U = decltype(mask);
    for (size_t i = 0; i < count; ++i) {
      U bits;
      std::memcpy(&bits, data + i * sizeof(U), sizeof(U));
      if ((bits & mask) == mask) return static_cast<int64_t>(i);
    }
    return -1;
  };
  if (dtype == DType::kF32) return scan(uint32_t{0x7f800000});
  return scan(dtype == DType::kBF16 ? uint16_t{0x7f80} : uint16_t{0x7c00});
}

// Left behind by older exporters, or a second copy of what is tied: not weights of their own.
bool may_be_ignored(const std::string& name, bool tied) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".masked_bias") ||
         (tied && name == "lm_head.weight");
}

}  // namespace

ModelWeights ModelWeights::open(SafetensorsSet files, const std::string& where,
                                const ModelConfig& config) {
  ModelWeights weights;
  weights.files_ = std::move(files);
  weights.where_ = where;
  weights.check(config);
  return weights;
}

ModelWeights ModelWeights::random(const ModelConfig& config, uint64_t seed, DType dtype) {
  ModelWeights weights;
  weights.seed_ = seed;
  weights.random_dtype_ = dtype;
  weights.range_ = config.initializer_range;
  return weights;
}

void ModelWeights::check(const ModelConfig& config) const {
  std::set<std::string> expected;
  for (const WeightSpec& spec : weight_specs(config))
    for (const WeightSpec::Part& part : spec.parts) {
      expected.insert(part.tensor);
      SafetensorsSet::Found found = files_->find(part.tensor);
      if (!found)
        fail(ErrorCode::kInvalidArgument, where_, ": has no tensor ", part.tensor, " ",
             part.shape.str(), ", which its config.json (", config.model_type,
             ") asks for; is the download complete?");
      if (!(found.info->shape == part.shape))
        fail(ErrorCode::kInvalidArgument, where_, ": ", part.tensor, " has shape ",
             found.info->shape.str(), ", expected ", part.shape.str(),
             "; do config.json and the weights belong together?");
      if (found.info->dtype != DType::kF32 && found.info->dtype != DType::kBF16 &&
          found.info->dtype != DType::kF16)
        fail(ErrorCode::kUnsupported, where_, ": ", part.tensor, " has element type ",
             found.info->type_name, "; wick reads F32, BF16 and F16");
    }
  for (const std::string& name : files_->names())
    if (!expected.count(name) && !may_be_ignored(name, config.tied))
      fail(ErrorCode::kInvalidArgument, where_, ": has the tensor ", name, ", which a ",
           config.model_type, " model with this config.json does not have",
           name == "lm_head.weight" ? "" : "; is it of another architecture?");
}

DType ModelWeights::dtype(const WeightSpec& spec) const {
  if (!files_) return random_dtype_;
  std::optional<DType> common;
  for (const WeightSpec::Part& part : spec.parts) {
    DType own = *files_->find(part.tensor).info->dtype;
    if (common && *common != own) return DType::kF32;
    common = own;
  }
  return *common;
}

std::vector<std::byte> ModelWeights::read(const WeightSpec& spec) const {
  const DType type = dtype(spec);
  const size_t element = dtype_bytes(type);
  std::vector<std::byte> out(static_cast<size_t>(spec.shape.elements()) * element);
  std::byte* to = out.data();
  for (const WeightSpec::Part& part : spec.parts) {
    const size_t count = static_cast<size_t>(part.shape.elements());
    if (!files_) {
      if (spec.init == WeightSpec::Init::kNormal) {
        fill_random(seed_, part.tensor, range_, type, count, to);
      } else if (spec.init == WeightSpec::Init::kOnes) {
        with_float_type(type, [&](auto element_type) {
          const auto one = from_float<decltype(element_type)>(1.0f);
          for (size_t i = 0; i < count; ++i) std::memcpy(to + i * element, &one, element);
        });
      }
    } else {
      SafetensorsSet::Found found = files_->find(part.tensor);
      const std::byte* from = found.bytes().data();
      const DType own = *found.info->dtype;
      int64_t bad = first_not_finite(own, from, count);
      if (bad >= 0)
        fail(ErrorCode::kCorruptFile, found.file->path().string(), ": ", part.tensor,
             " holds a value that is not finite at element ", bad,
             "; the file is damaged or the training that made it diverged");
      if (own == type)
        std::memcpy(to, from, count * element);
      else
        widen(own, from, count, reinterpret_cast<float*>(to));
      found.file->drop(*found.info);
    }
    to += count * element;
  }
  return out;
}

std::vector<float> ModelWeights::read_floats(const WeightSpec& spec) const {
  std::vector<std::byte> raw = read(spec);
  std::vector<float> out(static_cast<size_t>(spec.shape.elements()));
  widen(dtype(spec), raw.data(), out.size(), out.data());
  return out;
}

BufferPtr ModelWeights::buffer(const WeightSpec& spec, const Value& value, WeightForm form,
                               Backend& backend) {
  BufferPtr& slot = buffers_[spec.name];
  if (!slot) slot = backend.prepare(value, form, read(spec).data());
  return slot;
}

}  // namespace wick
