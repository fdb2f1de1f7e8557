// SPDX-License-Identifier: Apache-2.0
// Reading tensors from safetensors files. A file is a little-endian 64-bit header length, a JSON
// header {"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {…}}, and the bytes.
// Everything the header claims is checked against the file before a tensor can be reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/shape.h"

namespace wick {

struct TensorInfo {
  std::string name;
  std::string type_name;       // as in the file: "BF16", "F8_E4M3", …
  std::optional<DType> dtype;  // none for element types that wick does not compute with
  std::vector<int64_t> dims;   // of any rank
  Shape shape;                 // dims; empty where the rank is above Shape::kMaxRank
  size_t begin = 0, end = 0;   // its bytes, counted from the start of the file
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// Reads the header of a whole file's bytes. Guarantees of what it returns: every range lies inside
// the file, ranges neither overlap nor leave holes, and a range is as long as its shape and element
// type say (for element types known by name). Throws: kCorruptFile with `where`, got and wanted.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, std::string_view where);

// One memory-mapped file. Movable; spans stay valid while it lives.
class SafetensorsFile {
 public:
  // Throws: kNotFound, kIo, kCorruptFile.
  explicit SafetensorsFile(const std::filesystem::path& path) : SafetensorsFile(MappedFile(path)) {}
  explicit SafetensorsFile(MappedFile file);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  // nullptr if there is none. Throws: kUnsupported for a rank above Shape::kMaxRank.
  const TensorInfo* find(std::string_view name) const;

  // Of any rank.
  bool has(std::string_view name) const { return index_.count(name) > 0; }

  // Little-endian, row-major. Old files may place tensors at odd addresses: copy, do not cast.
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;

  // Lets the system drop the pages of a tensor that has been copied out.
  void drop(const TensorInfo& tensor) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> index_;  // views into header_.tensors' names
};

// The weights of a model folder: model.safetensors, or the shards that
// model.safetensors.index.json names; or one given file. Movable.
class SafetensorsSet {
 public:
  struct Found {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* info = nullptr;
    explicit operator bool() const { return info != nullptr; }
    std::span<const std::byte> bytes() const { return file->bytes(*info); }
  };

  // Throws: kNotFound naming what is missing (weights, a shard, a tensor of the index) and what the
  // folder has instead; kCorruptFile, also for an index that names files outside its folder; kIo.
  static SafetensorsSet open(const std::filesystem::path& folder_or_file);
  static SafetensorsSet of(SafetensorsFile file);

  // Throws: kUnsupported for a rank above Shape::kMaxRank.
  Found find(std::string_view name) const;

  const std::vector<std::string>& names() const { return names_; }  // sorted
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  // Of all tensors of all files, as stored.
  size_t total_bytes() const;

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::string> names_;
  std::map<std::string, const SafetensorsFile*, std::less<>> file_of_;
};

}  // namespace wick
