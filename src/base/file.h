// SPDX-License-Identifier: Apache-2.0
// Files: mapped for reading, written whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

// A file mapped read-only. A file that shrinks while it is mapped makes reads fault: wick never
// writes in place, so only a foreign program can do that.
class MappedFile {
 public:
  MappedFile() = default;
  // A pipe is read to its end into a file without a name. Throws: kNotFound, kIo. A directory or an
  // unreadable file is named in the message.
  explicit MappedFile(const std::filesystem::path& path);
  // Bytes that live as long as the process (the model inside the binary), under a name.
  static MappedFile over(std::span<const std::byte> bytes, const std::filesystem::path& name);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Lets the system drop the pages of a range that has been copied out.
  void drop_pages(size_t offset, size_t length) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool mapped_ = false;
  std::filesystem::path path_;
};

// Reads a whole file, or a pipe to its end; `limit` is checked before anything is allocated.
// Throws: kNotFound, kIo; kCorruptFile above the limit.
std::string read_file(const std::filesystem::path& path, size_t limit = size_t{1} << 30);

// Writes to a temporary name beside `path`, flushes it to the disk, and renames it over `path` on
// commit(). Without commit() (an exception, a crash, a full disk) the old file stays as it was.
// What processes that were killed have left of such writes to `path` is removed.
class AtomicFile {
 public:
  // Throws: kIo when the folder cannot be written.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Writes at a place counted from the start, and leaves the place of write() alone. Parts that
  // were never written read as zeros.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

void write_file(const std::filesystem::path& path, std::string_view text);

// Creates a folder and its parents. Throws: kIo with the reason.
void make_folder(const std::filesystem::path& path);

// A folder for the result of one piece of work, made where it was not there. At the end those of
// the folders made here that are empty go again; and before keep() was called, which says that the
// work is done, all that was put into a folder that was made here.
class NewFolder {
 public:
  // Throws: kIo with the reason.
  explicit NewFolder(const std::filesystem::path& path);
  ~NewFolder();
  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&&) = delete;

  void keep() { kept_ = true; }

 private:
  std::vector<std::filesystem::path> made_;  // the deepest first
  bool kept_ = false;
};

}  // namespace wick
