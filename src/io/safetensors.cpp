// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "io/impostor.h"
#include "io/json.h"
#include "io/safetensors_writer.h"

namespace wick {

namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kMaxRankRead = 64;

// Bits of the element types that safetensors names, of which wick computes with a few.
struct TypeBits {
  std::string_view name;
  int bits;
};
constexpr std::array<TypeBits, 20> kTypeBits = {{
    {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
    {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

std::optional<DType> computable_type(std::string_view name) {
  for (DType type :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64, DType::kU8})
    if (name == safetensors_type_name(type)) return type;
  return std::nullopt;
}

uint64_t read_length(std::span<const std::byte> file) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i)
    length |= static_cast<uint64_t>(std::to_integer<uint8_t>(file[i])) << (8 * i);
  return length;
}

// What a file is whose length of the header cannot be true.
std::string_view what_instead(std::string_view text) {
  if (std::string_view hint = impostor_hint(text); !hint.empty()) return hint;
  if (text.starts_with("{")) return "this is a text file, not weights; download again?";
  return "not a safetensors file, or cut short; download again?";
}

std::string_view header_text(std::span<const std::byte> file, std::string_view where) {
  std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (file.size() < kLengthBytes)
    fail(ErrorCode::kCorruptFile, where, ": ", file.size(),
         " bytes, a safetensors file has at least ", kLengthBytes, "; ", what_instead(text));
  uint64_t length = read_length(file);
  size_t limit = std::min(file.size() - kLengthBytes, kMaxHeaderBytes);
  if (length > limit)
    fail(ErrorCode::kCorruptFile, where, ": the header claims ", length, " bytes, at most ", limit,
         " are possible in a file of ", file.size(), "; ", what_instead(text));
  return text.substr(kLengthBytes, length);
}

TensorInfo read_tensor(const std::string& name, const Json& entry, size_t data_begin,
                       const std::string& where) {
  TensorInfo tensor;
  tensor.name = name;
  tensor.type_name = get_string(entry, "dtype", where);
  tensor.dtype = computable_type(tensor.type_name);

  const Json* shape = find_member(entry, "shape");
  if (!shape || !shape->is_array() || shape->size() > kMaxRankRead)
    fail(ErrorCode::kCorruptFile, where, ": \"shape\" must be an array of at most ", kMaxRankRead,
         " sizes");
  for (const Json& dim : *shape) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > uint64_t{1} << 62)
      fail(ErrorCode::kCorruptFile, where, ": \"shape\" has ", dim.is_number() ? "the size " : "",
           dim.is_number() ? dim.dump() : json_kind(dim), ", expected sizes of 0 or more");
    tensor.dims.push_back(dim.get<int64_t>());
  }
  if (tensor.dims.size() <= Shape::kMaxRank)
    for (int64_t dim : tensor.dims) tensor.shape.push_back(dim);

  const Json* offsets = find_member(entry, "data_offsets");
  if (!offsets || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned())
    fail(ErrorCode::kCorruptFile, where, ": \"data_offsets\" must be two byte offsets");
  uint64_t begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
  if (begin > end)
    fail(ErrorCode::kCorruptFile, where, ": \"data_offsets\" begin at ", begin,
         ", after their end at ", end);
  if (end > std::numeric_limits<size_t>::max() - data_begin)
    fail(ErrorCode::kCorruptFile, where, ": \"data_offsets\" end at ", end,
         ", beyond any file; download again?");
  tensor.begin = data_begin + begin;
  tensor.end = data_begin + end;
  return tensor;
}

void check_size(const TensorInfo& tensor, const std::string& where) {
  auto type = std::find_if(kTypeBits.begin(), kTypeBits.end(),
                           [&](const TypeBits& t) { return t.name == tensor.type_name; });
  if (type == kTypeBits.end()) return;
  uint64_t bits = static_cast<uint64_t>(type->bits);
  bool overflow = false;
  for (int64_t dim : tensor.dims)
    overflow |= __builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits);
  // A size of 0 anywhere makes the product 0, whatever the others were.
  if (std::find(tensor.dims.begin(), tensor.dims.end(), 0) != tensor.dims.end()) {
    overflow = false;
    bits = 0;
  }
  uint64_t got = tensor.end - tensor.begin;
  if (overflow || bits % 8 != 0 || bits / 8 != got) {
    std::string dims;
    for (int64_t dim : tensor.dims) dims += (dims.empty() ? "" : ", ") + std::to_string(dim);
    fail(ErrorCode::kCorruptFile, where, ": ", got, " bytes, but ", tensor.type_name, " [", dims,
         "] takes ",
         overflow        ? "more than any file has"
         : bits % 8 != 0 ? "no whole number of bytes"
                         : cat(bits / 8, " bytes"));
  }
}

// With the tensors sorted by place: no overlap, no hole, nothing beyond the file or left over.
void check_coverage(const std::vector<TensorInfo>& tensors, size_t data_begin, size_t file_size,
                    std::string_view where) {
  size_t at = data_begin;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.end > file_size)
      fail(ErrorCode::kCorruptFile, where, ": cut short: ", file_size, " bytes, but tensor ",
           tensor.name, " ends at byte ", tensor.end, "; download again?");
    if (tensor.begin < at)
      fail(ErrorCode::kCorruptFile, where, ": tensor ", tensor.name,
           " overlaps the one before it: it begins at byte ", tensor.begin, ", expected ", at);
    if (tensor.begin > at)
      fail(ErrorCode::kCorruptFile, where, ": ", tensor.begin - at, " bytes before tensor ",
           tensor.name, " belong to no tensor");
    at = tensor.end;
  }
  if (at != file_size)
    fail(ErrorCode::kCorruptFile, where, ": ", file_size - at,
         " bytes after the last tensor belong to no tensor: ", file_size, " bytes, expected ", at);
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           std::string_view where) {
  std::string_view text = header_text(file, where);
  size_t data_begin = kLengthBytes + text.size();
  Json json = parse_json(text, cat(where, ": header"));
  if (!json.is_object())
    fail(ErrorCode::kCorruptFile, where, ": the header is ", json_kind(json),
         ", expected an object");

  SafetensorsHeader header;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object())
        fail(ErrorCode::kCorruptFile, where, ": __metadata__ is ", json_kind(entry),
             ", expected an object of strings");
      for (const auto& [key, value] : entry.items())
        header.metadata[key] = get_string(entry, key, cat(where, ": __metadata__"));
      continue;
    }
    std::string tensor_where = cat(where, ": tensor ", name);
    header.tensors.push_back(read_tensor(name, entry, data_begin, tensor_where));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  // The file's size first: of a truncated file that is the thing to know.
  check_coverage(header.tensors, data_begin, file.size(), where);
  for (const TensorInfo& tensor : header.tensors)
    check_size(tensor, cat(where, ": tensor ", tensor.name));
  return header;
}

SafetensorsFile::SafetensorsFile(MappedFile file)
    : file_(std::move(file)),
      header_(parse_safetensors_header(file_.bytes(), file_.path().string())) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  auto found = index_.find(name);
  if (found == index_.end()) return nullptr;
  const TensorInfo& tensor = header_.tensors[found->second];
  if (tensor.dims.size() > Shape::kMaxRank)
    fail(ErrorCode::kUnsupported, path().string(), ": tensor ", name, " has ", tensor.dims.size(),
         " dimensions, wick reads at most ", Shape::kMaxRank);
  return &tensor;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  return file_.bytes().subspan(tensor.begin, tensor.end - tensor.begin);
}

void SafetensorsFile::drop(const TensorInfo& tensor) const {
  file_.drop_pages(tensor.begin, tensor.end - tensor.begin);
}

}  // namespace wick
