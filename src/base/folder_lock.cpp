// SPDX-License-Identifier: Apache-2.0
#include "base/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/file.h"

namespace wick {

int FolderLock::open_folder(const std::filesystem::path& folder) {
  return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool FolderLock::take(int fd) {
  // A run that was killed a moment ago may still hold it.
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

FolderLock::FolderLock(const std::filesystem::path& folder)
    : folder_(folder), fd_(open_folder(folder)) {
  if (fd_ < 0 || take(fd_)) return;
  ::close(std::exchange(fd_, -1));
  fail(ErrorCode::kIo, folder.string(),
       ": another run is writing into this folder; wait for its end, stop it, or name another "
       "folder");
}

bool FolderLock::renew() {
  if (fd_ < 0) return false;
  struct stat held {
  }, there{};
  if (::fstat(fd_, &held) != 0) return false;
  if (::stat(folder_.c_str(), &there) == 0 && there.st_dev == held.st_dev &&
      there.st_ino == held.st_ino)
    return false;
  make_folder(folder_);
  const int now = open_folder(folder_);
  if (now >= 0 && !take(now)) {
    ::close(now);
    fail(ErrorCode::kNotFound, folder_.string(),
         ": was removed or moved while this run went on, and another run is writing into the "
         "folder that took its name: this run cannot save; name another folder");
  }
  ::close(std::exchange(fd_, now));
  return true;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : folder_(std::move(other.folder_)), fd_(std::exchange(other.fd_, -1)) {}

}  // namespace wick
