// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/rng.h"
#include "base/threads.h"
#include "model/random_weights.h"
#include "model/weight_rows.h"
#include "quant/rows.h"

namespace wick {

namespace {

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

void draw_random(uint64_t seed, const std::string& tensor, WeightSpec::Init init, double range,
                 DType dtype, int64_t count, std::byte* to) {
  const auto n = static_cast<size_t>(count);
  if (init == WeightSpec::Init::kNormal) return fill_random(seed, tensor, range, dtype, n, to);
  put_row(dtype, std::vector<float>(n, init == WeightSpec::Init::kOnes ? 1.0f : 0.0f), to);
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

bool has_own_head(const SafetensorsSet& files) {
  const SafetensorsSet::Found head = files.find("lm_head.weight"),
                              table = files.find("model.embed_tokens.weight");
  if (!head || !table) return false;
  const bool same = head.info->type_name == table.info->type_name &&
                    head.info->shape == table.info->shape &&
                    std::ranges::equal(head.bytes(), table.bytes());
  for (const SafetensorsSet::Found& read : {head, table}) read.file->drop(*read.info);
  return !same;
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
      if (find_mlx_tensor(*files_, where_, part)) {
        expected.insert(mlx_beside(part.tensor, "scales"));
        expected.insert(mlx_beside(part.tensor, "biases"));
        continue;
      }
      if (!(found.info->shape == part.shape))
        fail(ErrorCode::kInvalidArgument, where_, ": ", part.tensor, " has shape ",
             found.info->shape.str(), ", expected ", part.shape.str(),
             "; do config.json and the weights belong together?");
      if (!is_float_tensor(*found.info))
        fail(ErrorCode::kUnsupported, where_, ": ", part.tensor, " has element type ",
             found.info->type_name, "; wick reads F32, BF16 and F16, and mlx's affine groups");
    }
  for (const std::string& name : files_->names())
    if (!expected.count(name) && !may_be_ignored(name, config.tied))
      fail(ErrorCode::kInvalidArgument, where_, ": has the tensor ", name, ", which a ",
           config.model_type, " model with this config.json does not have",
           name == "lm_head.weight" ? "" : "; is it of another architecture?");
}

DType ModelWeights::dtype(const WeightSpec& spec) const {
  return quantize_ && spec.shape.rank() == 2 ? *quantize_ : own_dtype(spec);
}

DType ModelWeights::own_dtype(const WeightSpec& spec) const {
  if (!files_) return random_dtype_;
  std::optional<DType> common;
  for (const WeightSpec::Part& part : spec.parts) {
    std::optional<MlxTensor> mlx = find_mlx_tensor(*files_, where_, part);
    DType own = mlx ? mlx->dtype() : *files_->find(part.tensor).info->dtype;
    if (common && *common != own) return DType::kF32;
    common = own;
  }
  return *common;
}

void ModelWeights::check_finite(const SafetensorsSet::Found& found) const {
  const auto count = static_cast<size_t>(found.info->shape.elements());
  int64_t bad = first_not_finite(*found.info->dtype, found.bytes().data(), count);
  if (bad >= 0)
    fail(ErrorCode::kCorruptFile, found.file->path().string(), ": ", found.info->name,
         " holds a value that is not finite at element ", bad,
         "; the file is damaged or the training that made it diverged");
}

void ModelWeights::read_part(const WeightSpec& spec, const WeightSpec::Part& part, DType type,
                             std::byte* to) const {
  const int64_t cols = part.shape.cols(), rows = part.shape.rows();
  const size_t stride = row_bytes(type, cols);
  std::vector<std::byte> drawn;
  std::optional<MlxTensor> mlx = files_ ? find_mlx_tensor(*files_, where_, part) : std::nullopt;
  if (mlx) {
    check_finite(mlx->scales);
    check_finite(mlx->biases);
    if (mlx->dtype() != type || !dtype_is_quantized(type))
      return put_rows(mlx_rows(*mlx, cols), type, rows, cols, to);
    for (int64_t r = 0; r < rows; ++r, to += stride)
      if (!mlx_to_row(type, mlx->row(r, cols), cols, to))
        fail(ErrorCode::kCorruptFile, mlx->words.file->path().string(), ": ", part.tensor,
             " is not symmetric, which the file's ", kCentredKey, " promises; convert it again");
    return;
  }
  if (!files_) {
    if (type == random_dtype_)
      return draw_random(seed_, part.tensor, spec.init, range_, type, rows * cols, to);
    drawn.resize(static_cast<size_t>(rows) * row_bytes(random_dtype_, cols));
    draw_random(seed_, part.tensor, spec.init, range_, random_dtype_, rows * cols, drawn.data());
    return put_rows(plain_rows(random_dtype_, drawn.data(), cols), type, rows, cols, to);
  }
  SafetensorsSet::Found found = files_->find(part.tensor);
  check_finite(found);
  const DType own = *found.info->dtype;
  if (own == type)
    std::memcpy(to, found.bytes().data(), static_cast<size_t>(rows) * stride);
  else
    put_rows(plain_rows(own, found.bytes().data(), cols), type, rows, cols, to);
  found.file->drop(*found.info);
}

std::vector<std::byte> ModelWeights::read_as(const WeightSpec& spec, DType type) const {
  const size_t stride = row_bytes(type, spec.shape.cols());
  std::vector<std::byte> out(static_cast<size_t>(spec.shape.rows()) * stride);
  // A vector's parts are vectors: they follow each other inside its one row.
  std::byte* to = out.data();
  for (const WeightSpec::Part& part : spec.parts) {
    read_part(spec, part, type, to);
    to += static_cast<size_t>(part.shape.rows()) * row_bytes(type, part.shape.cols());
  }
  return out;
}

std::vector<float> ModelWeights::read_floats(const WeightSpec& spec) const {
  const DType type = dtype(spec);
  std::vector<std::byte> raw = read(spec);
  std::vector<float> out(static_cast<size_t>(spec.shape.elements()));
  if (!dtype_is_quantized(type)) {
    widen_floats(type, raw.data(), out.size(), out.data());
    return out;
  }
  const int64_t cols = spec.shape.cols();
  for (int64_t r = 0; r < spec.shape.rows(); ++r)
    dequantize_row(type, raw.data() + static_cast<size_t>(r) * row_bytes(type, cols), cols,
                   out.data() + r * cols);
  return out;
}

void ModelWeights::check_wanted() const {
  if (stop_ && stop_())
    fail(ErrorCode::kCancelled, where_, ": stopped while its weights were read");
}

BufferPtr ModelWeights::buffer(const WeightSpec& spec, const Value& value, WeightForm form,
                               Backend& backend) {
  // Rarely two plans want two forms of one weight: the head with an adapter of its own.
  BufferPtr& slot = buffers_[form == WeightForm::kRows ? spec.name + ".rows" : spec.name];
  if (slot) return slot;
  check_wanted();
  if (short_ && form == WeightForm::kTiles && !dtype_is_quantized(value.dtype))
    form = WeightForm::kShortTiles;
  slot = backend.prepare(value, form, read(spec).data());
  return slot;
}

int64_t ModelWeights::loaded_bytes(const std::string& name) const {
  const auto found = buffers_.find(name);
  return found != buffers_.end() ? static_cast<int64_t>(found->second->bytes()) : 0;
}

int64_t ModelWeights::loaded_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, buffer] : buffers_) bytes += static_cast<int64_t>(buffer->bytes());
  return bytes;
}

BufferPtr ModelWeights::squares(const WeightSpec& spec, Backend& backend) {
  BufferPtr& slot = buffers_[spec.name + ".squares"];
  if (slot) return slot;
  check_wanted();
  const std::vector<float> w = read_floats(spec);
  const int64_t rows = spec.shape.rows(), cols = spec.shape.cols();
  std::vector<float> sums(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double x = w[static_cast<size_t>(r * cols + c)];
      sum += x * x;
    }
    sums[static_cast<size_t>(r)] = static_cast<float>(sum);
  }
  slot = backend.allocate(DType::kF32, rows);
  backend.upload(*slot, DType::kF32, 0, rows, sums.data());
  return slot;
}

uint64_t ModelWeights::fingerprint() const {
  // Two places of a page each: a tensor that was trained or drawn anew differs everywhere.
  constexpr size_t kPage = 4096;
  if (!files_) return mix_key(seed_, static_cast<uint64_t>(random_dtype_));
  uint64_t key = 0;
  for (const std::string& name : files_->names()) {
    const SafetensorsSet::Found found = files_->find(name);
    key = mix_key(key, name_key(cat(name, found.info->type_name, found.info->shape.str())));
    const std::span<const std::byte> bytes = found.bytes();
    for (size_t at : {size_t{0}, bytes.size() / 2})
      key = mix_key(key, crc32c(bytes.subspan(at, std::min(kPage, bytes.size() - at))));
    // A system maps what lies around a page as well: of many tensors a good part of the file.
    found.file->drop(*found.info);
  }
  return key;
}

}  // namespace wick
