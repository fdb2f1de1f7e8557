// SPDX-License-Identifier: Apache-2.0
// EventFile: scalars in a file that TensorBoard reads: TFRecord frames around Event messages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace wick {

class EventFile {
 public:
  // A new file in `folder`, which is made. Of a run that goes on behind step `after` (0: from its
  // beginning) TensorBoard forgets what earlier files say of what comes again. Throws: kIo.
  EventFile(const std::filesystem::path& folder, std::optional<int64_t> after);

  using Scalar = std::pair<std::string, double>;  // tag, value
  // Throws: kIo.
  void add(int64_t step, std::span<const Scalar> scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_event(int64_t step, int field, const std::string& message);

  std::filesystem::path path_;
  std::ofstream file_;
};

// One frame: length, its checksum, the bytes, theirs.
std::string tf_record(const std::string& bytes);

}  // namespace wick
