// SPDX-License-Identifier: Apache-2.0
#include "base/path_status.h"

#include "base/check.h"

namespace wick {

namespace {

std::filesystem::file_status status_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::none)
    fail(ErrorCode::kIo, path.string(), ": cannot be looked at: ", error.message(),
         error == std::errc::permission_denied ? "; check the permissions of the folders it is in"
                                               : "");
  return status;
}

}  // namespace

bool path_exists(const std::filesystem::path& path) {
  return std::filesystem::exists(status_of(path));
}

bool is_folder_at(const std::filesystem::path& path) {
  return std::filesystem::is_directory(status_of(path));
}

}  // namespace wick
