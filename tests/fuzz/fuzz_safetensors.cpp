// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: a header whose ranges cover the file exactly, or a wick::Error.
#include <cstdint>
#include <cstdlib>

#include "io/safetensors.h"
#include "wick/error.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void try_file(std::span<const std::byte> file) {
  try {
    wick::SafetensorsHeader header = wick::parse_safetensors_header(file, "input");
    size_t at = header.tensors.empty() ? file.size() : header.tensors.front().begin;
    for (const wick::TensorInfo& tensor : header.tensors) {
      check(tensor.begin == at && tensor.begin <= tensor.end && tensor.end <= file.size());
      at = tensor.end;
      if (tensor.dtype && tensor.dims.size() <= wick::Shape::kMaxRank && tensor.begin < tensor.end)
        check(static_cast<size_t>(tensor.shape.elements()) * wick::dtype_bytes(*tensor.dtype) ==
              tensor.end - tensor.begin);
    }
    check(at == file.size());
  } catch (const wick::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto bytes = std::as_bytes(std::span(data, size));
  try_file(bytes);
  // The same bytes with a length field that fits them, or mutations of the text rarely get past it.
  if (size > 8) {
    std::vector<std::byte> repaired(bytes.begin(), bytes.end());
    size_t brace = size;
    while (brace > 8 && repaired[brace - 1] != std::byte{'}'}) --brace;
    uint64_t length = brace - 8;
    for (int i = 0; i < 8; ++i)
      repaired[static_cast<size_t>(i)] = std::byte(length >> (8 * i) & 0xff);
    try_file(repaired);
  }
  return 0;
}
