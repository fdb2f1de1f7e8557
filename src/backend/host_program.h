// SPDX-License-Identifier: Apache-2.0
// What the back ends in the host's memory share: buffers, and the program that calls one kernel
// after the other.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backend/flat_program.h"

namespace wick {

// Zeroed host memory, aligned to kArenaAlignment. Large blocks come straight from the system, in
// huge pages where it has them, and take physical memory only once touched.
class HostBuffer final : public Buffer {
 public:
  // Throws: kOutOfMemory.
  explicit HostBuffer(size_t bytes, bool is_short = false);
  ~HostBuffer() override;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  size_t bytes() const override { return bytes_; }
  std::byte* address() const override { return data_; }
  bool is_short() const override { return is_short_; }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  bool is_short_ = false;
  void* mapped_ = nullptr;  // what munmap gets; null for small blocks
  size_t mapped_bytes_ = 0;
};

// How a back end holds elements: their size, and conversion from and to plain arrays of the dtype.
struct HostElements {
  ElementBytes bytes = nullptr;
  void (*store)(DType dtype, int64_t count, const void* plain, void* held) = nullptr;
  void (*load)(DType dtype, int64_t count, const void* held, void* plain) = nullptr;
};
// Held as they are in files: dtype_bytes() and memcpy.
HostElements plain_elements();

// Backend::allocate, upload and download over HostBuffer. Throw kInternal outside the buffer.
BufferPtr host_allocate(const HostElements& elements, DType dtype, int64_t count);
void host_upload(const HostElements& elements, Buffer& to, DType dtype, int64_t offset,
                 int64_t count, const void* data);
void host_download(const HostElements& elements, const Buffer& from, DType dtype, int64_t offset,
                   int64_t count, void* data);

class HostProgram final : public FlatProgram {
 public:
  // `candidates` and `pool` must outlive the program; every binding that a step uses must be a
  // HostBuffer. `arena` may be shared with programs that never run at the same time; null: its own.
  // Throws: kInternal where a buffer is missing or too small, kOutOfMemory.
  // `join` may give one call the work of its next ones, and change the order of calls.
  using Join = std::function<void(const Plan& plan, std::span<Call> calls)>;
  HostProgram(Plan plan, const Selection& selection, std::span<const Candidate> candidates,
              Bindings bindings, const HostElements& elements, ThreadPool& pool, BufferPtr arena,
              const Join& join = {});

  void feed(ValueId id, const void* data, size_t bytes) override;
  void run() noexcept override;
  void wait() override {}
  std::vector<double> run_timed() override;
  void read(ValueId id, void* data, size_t bytes) const override;

 private:
  HostElements elements_;
};

}  // namespace wick
