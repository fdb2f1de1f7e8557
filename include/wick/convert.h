// SPDX-License-Identifier: Apache-2.0
// Merging adapters into plain model folders and taking them out again; other types of weights.
#pragma once

#include <functional>
#include <string>

#include "wick/model.h"

namespace wick {

struct MergeOptions {
  std::string model = {};  // as ModelOptions::model
  std::string adapter_path = {};
  std::string save_path = {};   // must not be the model's own folder
  std::string save_dtype = {};  // "": as the model's; f32, bf16, f16
  bool reversible = false;      // also write what --unmerge needs without the base
  // Replace the model or adapter that save_path has. What a merge into the same base left there is
  // replaced without it.
  bool overwrite = false;
  // Asked between tensors; true: kCancelled is thrown, and what was written goes again.
  std::function<bool()> should_stop = {};
};

struct MergeResult {
  std::string path;
  int64_t tensors = 0, changed = 0;
  int64_t bytes = 0;
  std::string note;  // as ModelInfo::adapter_note
};

// Writes base + scale * B A as a folder in Hugging Face layout. Throws: kInvalidArgument, kIo.
MergeResult merge_adapter(Engine& engine, const MergeOptions& options);

// Restores the base of a merged folder to the bit into save_path: from the base that the folder
// records, or from the differences that a reversible merge stored.
MergeResult unmerge_adapter(const std::string& merged_path, const std::string& save_path,
                            const std::function<bool()>& should_stop = {}, bool overwrite = false);

struct ConvertOptions {
  std::string model = {};         // as ModelOptions::model
  std::string save_path = {};     // must not be the model's own folder
  int64_t quantize = 0;           // 8 or 4 bits; 0: no codes in the result
  int64_t group_size = 32;        // 32, 64, 128
  std::string save_dtype = {};    // of a result without codes: f32, bf16, f16; "": as the model's,
                                  // bf16 for what was quantised
  bool allow_requantize = false;  // codes of codes, where the model is quantised otherwise already
  bool overwrite = false;         // replace the model or adapter that save_path has
  std::function<bool()> should_stop = {};  // as MergeOptions'
};

struct ConvertResult {
  std::string path;
  int64_t tensors = 0, quantized = 0;
  int64_t bytes = 0;
};

// Writes the model as another folder. Quantised matrices are written as mlx-lm writes them, which
// reads the folder too; wick reads back the codes that --quantize would have made, to the bit.
// Matrices whose rows are not whole groups stay as they are, and so do codes of the wanted kind.
// Throws: kInvalidArgument, kIo.
ConvertResult convert_model(Engine& engine, const ConvertOptions& options);

}  // namespace wick
