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
  WICK_CHECK(!dtype_is_quantized(dtype), "tensor ", name, " is no array of ", dtype_name(dtype));
  add({name, safetensors_type_name(dtype), dtype_bytes(dtype), shape});
}

void SafetensorsWriter::declare_words(const std::string& name, const Shape& shape) {
  add({name, "U32", 4, shape});
}

void SafetensorsWriter::add(Entry entry) {
  WICK_CHECK(!file_, "tensor ", entry.name, " declared after the first write");
  if (entry.name == "__metadata__" || !index_.emplace(entry.name, entries_.size()).second)
    fail(ErrorCode::kInvalidArgument, path_.string(), ": tensor ", entry.name, " declared twice");
  entries_.push_back(std::move(entry));
}

void SafetensorsWriter::begin_file() {
  // Wide elements first keeps every tensor aligned to its element size without padding, which the
  // format has no room for and readers that cast in place need.
  std::vector<Entry*> order;
  for (Entry& entry : entries_) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return a->element_bytes > b->element_bytes;
  });
  Json header = Json::object();
  if (!metadata_.empty()) header["__metadata__"] = metadata_;
  auto& members = static_cast<Json::object_t::Container&>(header.get_ref<Json::object_t&>());
  size_t at = 0;
  for (Entry* entry : order) {
    entry->begin = at;
    at += static_cast<size_t>(entry->shape.elements()) * entry->element_bytes;
    entry->end = at;
    Json dims = Json::array();
    for (int i = 0; i < entry->shape.rank(); ++i) dims.push_back(entry->shape[i]);
    Json value = {{"dtype", entry->type},
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
         entry.shape.str(), " ", entry.type, " takes ", entry.end - entry.begin, " bytes, got ",
         bytes.size());
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
    case DType::kQ8G32:
    case DType::kQ8G64:
    case DType::kQ8G128:
    case DType::kQ4G32:
    case DType::kQ4G64:
    case DType::kQ4G128:
      break;
  }
  return "?";
}

}  // namespace wick
