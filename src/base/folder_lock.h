// SPDX-License-Identifier: Apache-2.0
// One writer per folder.
#pragma once

#include <filesystem>

namespace wick {

// Held while a run writes into a folder, so that a second one does not mix its files with it. It
// goes with the process, however that ends, and leaves no file behind. Where the file system knows
// no locks, it holds nothing.
class FolderLock {
 public:
  // Throws: kIo where another run holds the folder, which must exist, and goes on holding it for a
  // second.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace wick
