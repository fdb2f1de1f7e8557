// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"

namespace wick {

namespace {

constexpr const char* kTemporary = ".tmp";  // and the number of the process

[[noreturn]] void fail_errno(const std::filesystem::path& path, const char* what) {
  int e = errno;
  const char* hint = e == ENOSPC || e == EDQUOT ? "; free some space and run the command again"
                     : e == EFBIG  ? "; the limit on the size of files is in the way (ulimit -f)"
                     : e == EACCES ? "; check the permissions of the file and its folder"
                     : e == EROFS  ? "; name a place that can be written"
                                   : "";
  fail(e == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, path.string(), ": cannot ", what, ": ",
       std::strerror(e), hint);
}

// A file or pipe open for reading.
struct Descriptor {
  explicit Descriptor(const std::filesystem::path& path) {
    become(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path);
    if (S_ISDIR(info.st_mode)) {
      ::close(std::exchange(fd, -1));
      fail(ErrorCode::kIo, path.string(), ": a folder, expected a file");
    }
  }
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  // Takes `other` over and closes what was open before.
  void become(int other, const std::filesystem::path& path) {
    if (other < 0) fail_errno(path, "open");
    if (fd >= 0) ::close(fd);
    fd = other;
    if (::fstat(fd, &info) == 0) return;
    ::close(std::exchange(fd, -1));
    fail_errno(path, "read the size of");
  }

  int fd = -1;
  struct stat info {};
};

void write_all(int fd, const std::byte* data, size_t size, const std::filesystem::path& path) {
  while (size > 0) {
    ssize_t n = ::write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path, "write");
    data += n;
    size -= static_cast<size_t>(n);
  }
}

// Makes a rename durable: the folder's entry reaches the disk too.
void sync_folder(const std::filesystem::path& folder) {
  int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

// A file without a name that holds what comes out of a pipe, so that it can be mapped.
int spooled(int from, const std::filesystem::path& path) {
  constexpr int64_t kMost = int64_t{4} << 30;  // more is no pipe with an end
  std::FILE* file = std::tmpfile();
  const int to = file ? ::dup(::fileno(file)) : -1;
  if (file) std::fclose(file);
  if (to < 0) fail_errno(path, "keep what comes from");
  std::vector<std::byte> part(size_t{1} << 18);
  int64_t sum = 0;
  try {
    for (;;) {
      const ssize_t n = ::read(from, part.data(), part.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_errno(path, "read");
      if (n == 0) return to;
      sum += n;
      if (sum > kMost) fail(ErrorCode::kIo, path.string(), ": gives more than 4 GiB; write a file");
      write_all(to, part.data(), static_cast<size_t>(n), path);
    }
  } catch (...) {
    ::close(to);
    throw;
  }
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  Descriptor file(path);
  if (S_ISBLK(file.info.st_mode)) fail(ErrorCode::kIo, path.string(), ": not a regular file");
  if (!S_ISREG(file.info.st_mode)) file.become(spooled(file.fd, path), path);
  size_ = static_cast<size_t>(file.info.st_size);
  if (size_ > 0) {
    void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (map == MAP_FAILED) fail_errno(path, "map");
    data_ = static_cast<const std::byte*>(map);
    mapped_ = true;
  }
}

MappedFile MappedFile::over(std::span<const std::byte> bytes, const std::filesystem::path& name) {
  MappedFile file;
  file.data_ = bytes.data();
  file.size_ = bytes.size();
  file.path_ = name;
  return file;
}

MappedFile::~MappedFile() {
  if (mapped_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, false)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(path_, other.path_);
  return *this;
}

void MappedFile::drop_pages(size_t offset, size_t length) const {
  if (!mapped_) return;
  static const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  size_t begin = (offset + page - 1) / page * page, end = (offset + length) / page * page;
  if (begin < end && end <= size_)
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

std::string read_file(const std::filesystem::path& path, size_t limit) {
  const Descriptor file(path);
  auto check = [&](size_t bytes) {
    if (bytes > limit)
      fail(ErrorCode::kCorruptFile, path.string(), ": ", bytes, " bytes or more, at most ", limit,
           " expected for this kind of file");
  };
  const size_t expected = S_ISREG(file.info.st_mode) ? static_cast<size_t>(file.info.st_size) : 0;
  check(expected);
  constexpr size_t kChunk = size_t{1} << 16;  // what a pipe gives at once
  std::string text;
  for (size_t have = 0;;) {
    text.resize(std::max(expected, have) + kChunk);
    ssize_t n = ::read(file.fd, text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path, "read");
    have += static_cast<size_t>(n);
    check(have);
    if (n > 0) continue;
    text.resize(have);
    return text;
  }
}

namespace {

// Of writers of `path` that are gone: by their number, and where the folder is shared with other
// machines by the lock that a writer holds.
void remove_leftovers(const std::filesystem::path& path) {
  const std::string begin = path.filename().string() + kTemporary;
  std::error_code error;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::vector<std::filesystem::path> found;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error))
    if (it->path().filename().string().starts_with(begin)) found.push_back(it->path());
  for (const std::filesystem::path& each : found) {
    const std::string digits = each.filename().string().substr(begin.size());
    if (digits.empty() || digits.size() > 9 ||
        digits.find_first_not_of("0123456789") != std::string::npos ||
        ::kill(std::stoi(digits), 0) == 0 || errno != ESRCH)
      continue;
    const int fd = ::open(each.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) ::unlink(each.c_str());
    ::close(fd);
  }
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  // Renaming over a device, a pipe or /dev/stdout would put a plain file in its place, for
  // everybody.
  std::error_code none;
  if (std::filesystem::is_other(path_, none) ||
      (path_.string().starts_with("/dev/") && std::filesystem::is_symlink(path_, none)))
    fail(ErrorCode::kInvalidArgument, path_.string(),
         ": a device or a pipe, which a file would replace; name a plain file");
  remove_leftovers(path_);
  // The process id keeps two writers of one path from sharing a temporary file.
  temporary_ = path_.string() + kTemporary + std::to_string(::getpid());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_errno(temporary_, "create");
  ::flock(fd_, LOCK_EX | LOCK_NB);  // see remove_leftovers
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write_all(fd_, bytes.data(), bytes.size(), temporary_);
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(temporary_, "write");
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail_errno(temporary_, "flush");
  if (::close(std::exchange(fd_, -1)) != 0) {
    ::unlink(temporary_.c_str());
    fail_errno(temporary_, "close");
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    ::unlink(temporary_.c_str());
    fail_errno(path_, "replace");
  }
  sync_folder(path_.parent_path());
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path))
    fail(ErrorCode::kIo, path.string(), ": cannot create this folder: ",
         error && error != std::errc::not_a_directory && error != std::errc::file_exists
             ? error.message()
             : "a file of that name, or a link to nothing, is in the way",
         error == std::errc::permission_denied || error == std::errc::read_only_file_system
             ? "; name a place that you may write to"
             : "");
}

NewFolder::NewFolder(const std::filesystem::path& path) {
  std::error_code none;
  for (std::filesystem::path at = std::filesystem::absolute(path, none).lexically_normal();
       at.has_relative_path() && !std::filesystem::exists(at, none); at = at.parent_path())
    if (at.has_filename()) made_.push_back(at);
  make_folder(path);
}

NewFolder::NewFolder(NewFolder&& other) noexcept
    : made_(std::exchange(other.made_, {})), kept_(other.kept_) {}

NewFolder::~NewFolder() {
  std::error_code none;
  if (!kept_ && !made_.empty()) std::filesystem::remove_all(made_.front(), none);
  for (const std::filesystem::path& each : made_) ::rmdir(each.c_str());
}

}  // namespace wick
