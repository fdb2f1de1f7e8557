// SPDX-License-Identifier: Apache-2.0
// What the back ends in the host's memory share: buffers, and the program that replays a plan as a
// flat list of kernel calls whose operands were resolved when it was compiled.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/kernels.h"

namespace wick {

// Zeroed host memory, aligned to kArenaAlignment. Large blocks come straight from the system, in
// huge pages where it has them, and take physical memory only once touched.
class HostBuffer final : public Buffer {
 public:
  // Throws: kOutOfMemory.
  explicit HostBuffer(size_t bytes);
  ~HostBuffer() override;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  size_t bytes() const override { return bytes_; }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
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

class HostProgram final : public Program {
 public:
  // Keeps the plan and the bound buffers. `candidates` is the list that `selection` was made from
  // and must outlive the program, as must `pool`. Every binding that a step uses must be a
  // HostBuffer. `arena` may be shared with programs that never run at the same time; null: its own.
  // Throws: kInternal where a buffer is missing or too small, kOutOfMemory.
  HostProgram(Plan plan, const Selection& selection, std::span<const Candidate> candidates,
              Bindings bindings, const HostElements& elements, ThreadPool& pool, BufferPtr arena);

  void feed(ValueId id, const void* data, size_t bytes) override;
  void run() noexcept override;
  void wait() override {}
  std::vector<double> run_timed() override;
  void read(ValueId id, void* data, size_t bytes) const override;
  size_t arena_bytes() const override { return static_cast<size_t>(placement_.arena_bytes); }

  // For tests: a value's first element and the steps' arguments, in order.
  std::byte* address(ValueId id) const;
  struct Call {
    KernelFn fn;
    StepArgs args;
  };
  std::span<const Call> calls() const { return calls_; }

 private:
  Operand resolve(ValueId id) const;

  Plan plan_;
  Bindings bindings_;
  std::vector<WeightForm> forms_;
  HostElements elements_;
  Placement placement_;
  std::vector<int64_t> feed_offset_;  // by value id; -1 for what is not a feed's root
  HostBuffer feeds_;
  std::shared_ptr<HostBuffer> arena_;
  std::vector<Operand> operands_;  // of all steps, in order; calls_ points into it
  std::vector<Call> calls_;
};

}  // namespace wick
