// SPDX-License-Identifier: Apache-2.0
// A folder of its own for one test, removed at its end.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/file.h"

namespace wick {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / cat("wick_", name, "_", ::getpid())) {
    std::filesystem::remove_all(path_);
    make_folder(path_);
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  // Creates the folders on the way.
  std::filesystem::path write(const std::string& name, std::string_view text) const {
    make_folder((path_ / name).parent_path());
    write_file(path_ / name, text);
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// The message of the Error that `f` throws, "" if it throws none. Checks nothing else.
template <typename F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// For messages: EXPECT_PRED2(contains, message, "part").
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace wick
