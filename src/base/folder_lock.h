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

  // Where the folder was removed or moved meanwhile, makes it anew and holds that one; returns
  // whether it did. Throws: kNotFound where another run holds what is there now; kIo.
  bool renew();

 private:
  static int open_folder(const std::filesystem::path& folder);
  // False: another run holds it.
  static bool take(int fd);

  std::filesystem::path folder_;
  int fd_ = -1;
};

}  // namespace wick
