// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/check.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace wick {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

[[noreturn]] void fail_no_weights(const fs::path& folder) {
  std::vector<std::string> shards, pickled;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors")) shards.push_back(name);
    if (name.ends_with(".bin") || name.ends_with(".pth")) pickled.push_back(name);
  }
  for (const char* name : {kSingleName, kIndexName})
    if (const fs::path path = folder / name; fs::is_symlink(path, error))
      fail(ErrorCode::kNotFound, path.string(), ": a link to ",
           fs::read_symlink(path, error).string(),
           ", which is not there; is the download complete?");
  std::sort(shards.begin(), shards.end());
  std::sort(pickled.begin(), pickled.end());
  if (!shards.empty())
    fail(ErrorCode::kNotFound, folder.string(), ": has ", shards.front(),
         shards.size() > 1 ? cat(" and ", shards.size() - 1, " more") : "", " but neither ",
         kSingleName, " nor ", kIndexName, "; download the missing file");
  if (!pickled.empty())
    fail(ErrorCode::kUnsupported, folder.string(), ": has its weights only as ", pickled.front(),
         ", a format that can run code when loaded; convert to safetensors first");
  fail(ErrorCode::kNotFound, folder.string(), ": no ", kSingleName, " and no ", kIndexName,
       "; is the download complete?");
}

// A shard is a plain name beside its index: an index must not reach other places of the disk.
void check_shard_name(const std::string& shard, const std::string& where) {
  if (shard.empty() || shard == "." || shard == ".." ||
      shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
    fail(ErrorCode::kCorruptFile, where, ": weight_map names the file ", dump_json(shard),
         "; only plain file names in the same folder are accepted");
}

}  // namespace

SafetensorsSet SafetensorsSet::open(const fs::path& folder_or_file) {
  SafetensorsSet set;
  auto take_whole_file = [&](const fs::path& path) {
    set.files_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const TensorInfo& tensor : set.files_.back()->tensors())
      set.file_of_[tensor.name] = set.files_.back().get();
  };
  std::error_code error;
  fs::path index_path = folder_or_file / kIndexName;
  if (!fs::exists(folder_or_file, error))
    fail(ErrorCode::kNotFound, folder_or_file.string(), ": no such file or folder");
  if (!fs::is_directory(folder_or_file, error)) {
    take_whole_file(folder_or_file);
  } else if (fs::exists(folder_or_file / kSingleName, error)) {
    take_whole_file(folder_or_file / kSingleName);
  } else if (fs::exists(index_path, error)) {
    std::string where = index_path.string();
    Json index = read_json(index_path);
    const Json* map = find_member(index, "weight_map");
    if (!map || !map->is_object() || map->empty())
      fail(ErrorCode::kCorruptFile, where,
           ": \"weight_map\" must be an object that names a file for each tensor");
    std::map<std::string, const SafetensorsFile*> opened;
    for (const auto& [name, value] : map->items()) {
      if (!value.is_string())
        fail(ErrorCode::kCorruptFile, where, ": weight_map of ", name, " is ", json_kind(value),
             ", expected a file name");
      const std::string& shard = value.get_ref<const std::string&>();
      const SafetensorsFile*& file = opened[shard];
      if (!file) {
        check_shard_name(shard, where);
        if (!fs::exists(folder_or_file / shard, error))
          fail(ErrorCode::kNotFound, where, ": names ", shard,
               ", which is not in the folder; is the download complete?");
        set.files_.push_back(std::make_unique<SafetensorsFile>(folder_or_file / shard));
        file = set.files_.back().get();
      }
      set.file_of_[name] = file;
    }
    for (const auto& [name, file] : set.file_of_)
      if (!file->has(name))
        fail(ErrorCode::kNotFound, where, ": tensor ", name, " should be in ",
             file->path().filename().string(), ", which does not have it; download both again?");
  } else {
    fail_no_weights(folder_or_file);
  }
  for (const auto& [name, file] : set.file_of_) set.names_.push_back(name);
  return set;
}

SafetensorsSet SafetensorsSet::of(SafetensorsFile file) {
  SafetensorsSet set;
  set.files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
  for (const TensorInfo& tensor : set.files_.front()->tensors())
    set.file_of_[tensor.name] = set.files_.front().get();
  for (const auto& [name, owner] : set.file_of_) set.names_.push_back(name);
  return set;
}

SafetensorsSet::Found SafetensorsSet::find(std::string_view name) const {
  auto found = file_of_.find(name);
  if (found == file_of_.end()) return {};
  return {found->second, found->second->find(name)};
}

size_t SafetensorsSet::total_bytes() const {
  size_t total = 0;
  for (const auto& file : files_)
    for (const TensorInfo& tensor : file->tensors()) total += tensor.end - tensor.begin;
  return total;
}

}  // namespace wick
