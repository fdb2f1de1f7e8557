// SPDX-License-Identifier: Apache-2.0
// Writing safetensors files, tensor by tensor, whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/shape.h"

namespace wick {

// Declare every tensor, then write each one once, in any order, then commit(). Only the tensor
// being written is in memory. Without commit() an old file of that name stays as it was.
//
//   SafetensorsWriter out(folder / "model.safetensors");
//   for (…) out.declare(name, dtype, shape);
//   for (…) out.write(name, bytes);
//   out.commit();
class SafetensorsWriter {
 public:
  // {"format": "pt"} is what transformers and PEFT look for.
  explicit SafetensorsWriter(std::filesystem::path path,
                             std::map<std::string, std::string> metadata = {{"format", "pt"}});

  // Throws: kInvalidArgument for a name twice, or after the first write.
  void declare(const std::string& name, DType dtype, const Shape& shape);
  // Of 32-bit words, the container of other programs' codes.
  void declare_words(const std::string& name, const Shape& shape);

  // `bytes` as in memory: little-endian, row-major. Throws: kInvalidArgument for an undeclared
  // name, a second write, or a wrong size; kIo.
  void write(std::string_view name, std::span<const std::byte> bytes);

  // Throws: kInvalidArgument when a declared tensor was not written; kIo.
  void commit();

 private:
  struct Entry {
    std::string name;
    std::string type;  // as safetensors names it
    size_t element_bytes;
    Shape shape;
    size_t begin = 0, end = 0;  // counted from the end of the header
    bool written = false;
  };
  void add(Entry entry);
  void begin_file();

  std::filesystem::path path_;
  std::map<std::string, std::string> metadata_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
  std::optional<AtomicFile> file_;  // from the first write on
  size_t data_begin_ = 0;
};

// The name of an element type in safetensors: "F32", "BF16", ….
const char* safetensors_type_name(DType dtype);

}  // namespace wick
