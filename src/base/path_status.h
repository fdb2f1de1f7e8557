// SPDX-License-Identifier: Apache-2.0
// What is at a path, where a folder on the way that may not be looked into is not "nothing".
#pragma once

#include <filesystem>

namespace wick {

// Both follow links. Throws: kIo, with the path and the reason, where it cannot be told.
bool path_exists(const std::filesystem::path& path);
bool is_folder_at(const std::filesystem::path& path);

}  // namespace wick
