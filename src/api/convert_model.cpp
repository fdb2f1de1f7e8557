// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "api/internal.h"
#include "base/check.h"
#include "base/file.h"
#include "model/save.h"

namespace wick {

ConvertResult convert_model(Engine& engine, const ConvertOptions& options) {
  const EngineTurn turn(engine);
  std::optional<DType> type;
  Json quantization;
  if (options.quantize != 0) {
    type = quantized_dtype(static_cast<int>(options.quantize), options.group_size);
    if (!type)
      fail(ErrorCode::kInvalidArgument, "--quantize ", options.quantize, " --group-size ",
           options.group_size, ": wanted 8 or 4 bits in groups of 32, 64 or 128");
    if (!options.save_dtype.empty())
      fail(ErrorCode::kInvalidArgument,
           "--save-dtype is the type of plain weights; with --quantize leave it out");
    quantization = {{"group_size", options.group_size}, {"bits", options.quantize}};
  } else if (!options.save_dtype.empty()) {
    type = parse_dtype(options.save_dtype);
    if (!type || (*type != DType::kF32 && *type != DType::kBF16 && *type != DType::kF16))
      fail(ErrorCode::kInvalidArgument, "--save-dtype is \"", options.save_dtype,
           "\", wanted f32, bf16 or f16");
  }
  ModelOptions model_options;
  model_options.model = options.model;
  Model model = Model::load(engine, model_options);
  const Model::Impl& m = model.impl();
  refuse_in_place(m.folder.folder, "the model's", options.save_path);
  refuse_replacing(options.save_path, options.overwrite);
  if (options.quantize != 0) {
    const std::vector<WeightSpec> specs = weight_specs(m.config);
    if (std::none_of(specs.begin(), specs.end(), [&](const WeightSpec& spec) {
          return spec.shape.rank() == 2 && spec.shape.cols() % options.group_size == 0;
        }))
      fail(ErrorCode::kInvalidArgument, "--group-size ", options.group_size, ": no matrix of ",
           m.name(), " has rows of whole groups, so nothing would be quantised",
           options.group_size > 32 ? "; try --group-size 32" : "");
    if (!options.allow_requantize)
      refuse_requantizing(m, *type,
                          "convert the model that it was made from, or say --allow-requantize");
  }
  NewFolder folder(options.save_path);
  SavedWeights saved =
      save_weights(options.save_path, m.config, *m.weights, type, {}, options.should_stop);
  remove_replaced(options.save_path);
  write_model_files(m, options.save_path, quantization);
  folder.keep();
  return {options.save_path, saved.tensors, saved.quantized, saved.bytes};
}

}  // namespace wick
