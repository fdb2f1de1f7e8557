// SPDX-License-Identifier: Apache-2.0
// A model folder in Hugging Face layout: finding it, its settings, and its files beside the
// weights.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/json.h"

namespace wick {

struct ModelFolder {
  std::filesystem::path folder;
  Json config;             // config.json, an object
  Json generation_config;  // null if there is none
};

// Opens a folder, or a hub name ("org/name") that was downloaded before: then the revision that
// `main` points to in the Hugging Face cache ($HF_HUB_CACHE, $HF_HOME/hub,
// $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub). Weights are not opened.
// Throws: kNotFound, kInvalidArgument (an adapter's folder), kUnsupported (pickled or GGUF
// weights), kCorruptFile, kIo; each message says what to do.
ModelFolder open_model_folder(const std::string& folder_or_name);

// Refuses a folder in which a settings, weights or template file is neither a file nor a folder:
// reading a named pipe would wait for its writer. Nor may a file that is read where there is one be
// a link to nothing. Throws: kInvalidArgument, kNotFound.
void refuse_special_files(const std::filesystem::path& folder);

// The snapshot folder of a hub name in the local cache, or "" if it is not there.
std::filesystem::path find_in_hub_cache(const std::string& name);

// Copies settings, tokenizer, chat templates and licence files (what a model needs beside its
// weights) into `to`, which is created. Throws: kIo.
void copy_model_files(const std::filesystem::path& from, const std::filesystem::path& to);

// The files of a folder that belong to a model, as paths within it, sorted: what copy_model_files
// copies, and weights.
std::vector<std::filesystem::path> files_of_model(const std::filesystem::path& folder);
// Those of an adapter, PEFT's or mlx-lm's.
std::vector<std::filesystem::path> files_of_adapter(const std::filesystem::path& folder);

// Removes the files of a model but for licences and the one of the name `kept`. Throws: kIo.
void remove_model(const std::filesystem::path& folder, const std::filesystem::path& kept = {});
// Removes an adapter, and a model but for model.safetensors, which has been replaced: a template
// or shards of what was there would be taken for the new model's. Throws: kIo.
void remove_replaced(const std::filesystem::path& folder);

}  // namespace wick
