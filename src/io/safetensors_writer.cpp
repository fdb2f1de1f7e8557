// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_writer.h"

#include <algorithm>

#include "base/check.h"
#include "io/json.h"

namespace wick {

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path,
                                     std::map<std::string, std::string> metadata)
    : path_(std::move(path)), metadata_(std::move(metadata)) {}

void SafetensorsWriter::declare(const std::string& name, DType dtype, const Shape& shape) {
  WICK_CHECK(!file_, "tensor ", name, " declared after the first write");
  if (name == "__metadata__" || !index_.emplace(name, entries_.size()).second)
    fail(ErrorCode::kInvalidArgument, path_.string(), ": tensor ", name, " declared twice");
  entries_.push_back({name, dtype, shape});
}

void SafetensorsWriter::begin_file() {
  // Wide elements first keeps every tensor aligned to its element size without padding, which the
  // format has no room for and readers that cast in place need.
  std::vector<Entry*> order;
  for (Entry& entry : entries_) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
  });
  Json header = Json::object();
  if (!metadata_.empty()) header["__metadata__"] = metadata_;
  auto& members = static_cast<Json::object_t::Container&>(header.get_ref<Json::object_t&>());
  size_t at = 0;
  for (Entry* entry : order) {
    entry->begin = at;
    at += static_cast<size_t>(entry->shape.elements()) * dtype_bytes(entry->dtype);
    entry->end = at;
    Json dims = Json::array();
    for (int i = 0; i < entry->shape.rank(); ++i) dims.push_back(entry->shape[i]);
    Json value = {{"dtype", safetensors_type_name(entry->dtype)},
                  {"shape", std::move(dims)},
                  {"data_offsets", {entry->begin, entry->end}}};
    members.emplace_back(entry->name, std::move(value));
  }
  std::string text = dump_json(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i)
    length[static_cast<size_t>(i)] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  file_.emplace(path_);
  file_->write(length);
  file_->write(text);
  data_begin_ = length.size() + text.size();
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  if (!file_) begin_file();
  auto found = index_.find(name);
  if (found == index_.end())
    fail(ErrorCode::kInvalidArgument, path_.string(), ": tensor ", name, " was not declared");
  Entry& entry = entries_[found->second];
  if (entry.written)
    fail(ErrorCode::kInvalidArgument, path_.string(), ": tensor ", name, " written twice");
  if (bytes.size() != entry.end - entry.begin)
    fail(ErrorCode::kInvalidArgument, path_.string(), ": tensor ", name, " of shape ",
         entry.shape.str(), " ", dtype_name(entry.dtype), " takes ", entry.end - entry.begin,
         " bytes, got ", bytes.size());
  file_->write_at(data_begin_ + entry.begin, bytes);
  entry.written = true;
}

void SafetensorsWriter::commit() {
  if (!file_) begin_file();
  for (const Entry& entry : entries_)
    if (!entry.written && entry.begin != entry.end)
      fail(ErrorCode::kInvalidArgument, path_.string(), ": tensor ", entry.name,
           " was declared and not written");
  file_->commit();
}

const char* safetensors_type_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF64:
      return "F64";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kU8:
      return "U8";
  }
  return "?";
}

}  // namespace wick
