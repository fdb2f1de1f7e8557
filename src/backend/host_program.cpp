// SPDX-License-Identifier: Apache-2.0
#include "backend/host_program.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/threads.h"

namespace wick {
namespace {

constexpr size_t kAlignment = static_cast<size_t>(kArenaAlignment);
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

std::byte* add_bytes(void* p, size_t n) { return static_cast<std::byte*>(p) + n; }

const HostBuffer& host_buffer(const Buffer& buffer) {
  auto* host = dynamic_cast<const HostBuffer*>(&buffer);
  WICK_CHECK(host != nullptr, "a buffer of another back end");
  return *host;
}

}  // namespace

HostBuffer::HostBuffer(size_t bytes, bool is_short) : bytes_(bytes), is_short_(is_short) {
  if (bytes < kHugePage) {
    size_t size = std::max(round_up(bytes, kAlignment), kAlignment);
    data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
    if (data_ != nullptr) std::memset(data_, 0, size);
  } else if (bytes <= SIZE_MAX / 2) {
    mapped_bytes_ = bytes + kHugePage;
    void* p =
        mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED) {
      mapped_ = p;
      auto address = reinterpret_cast<uintptr_t>(p);
      data_ = add_bytes(p, round_up(address, kHugePage) - address);
#ifdef MADV_HUGEPAGE
      madvise(data_, bytes, MADV_HUGEPAGE);
#endif
    }
  }
  if (data_ == nullptr) {
    fail(ErrorCode::kOutOfMemory, "no room for ", bytes >> 20,
         " MiB of host memory; use a smaller batch or fewer tokens, for training --memory");
  }
}

HostBuffer::~HostBuffer() {
  if (mapped_ != nullptr) {
    munmap(mapped_, mapped_bytes_);
  } else {
    std::free(data_);
  }
}

HostElements plain_elements() {
  auto copy = [](DType dtype, int64_t count, const void* from, void* to) {
    std::memcpy(to, from, static_cast<size_t>(count) * dtype_bytes(dtype));
  };
  return {.bytes = [](DType t) { return dtype_bytes(t); }, .store = copy, .load = copy};
}

BufferPtr host_allocate(const HostElements& elements, DType dtype, int64_t count) {
  WICK_CHECK(count >= 0, "count ", count);
  return std::make_shared<HostBuffer>(static_cast<size_t>(count) * elements.bytes(dtype));
}

void host_upload(const HostElements& elements, Buffer& to, DType dtype, int64_t offset,
                 int64_t count, const void* data) {
  size_t size = elements.bytes(dtype), first = static_cast<size_t>(offset) * size;
  WICK_CHECK(offset >= 0 && count >= 0 && first + static_cast<size_t>(count) * size <= to.bytes(),
             "elements ", offset, " to ", offset + count, " of a buffer of ", to.bytes(), " bytes");
  elements.store(dtype, count, data, host_buffer(to).data() + first);
}

void host_download(const HostElements& elements, const Buffer& from, DType dtype, int64_t offset,
                   int64_t count, void* data) {
  size_t size = elements.bytes(dtype), first = static_cast<size_t>(offset) * size;
  WICK_CHECK(offset >= 0 && count >= 0 && first + static_cast<size_t>(count) * size <= from.bytes(),
             "elements ", offset, " to ", offset + count, " of a buffer of ", from.bytes(),
             " bytes");
  elements.load(dtype, count, host_buffer(from).data() + first, data);
}

HostProgram::HostProgram(Plan plan, const Selection& selection,
                         std::span<const Candidate> candidates, Bindings bindings,
                         const HostElements& elements, ThreadPool& pool, BufferPtr arena,
                         const Join& join)
    : FlatProgram(std::move(plan), selection, std::move(bindings), elements.bytes),
      elements_(elements) {
  if (!arena) arena = std::make_shared<HostBuffer>(arena_bytes());
  resolve(selection, candidates, std::move(arena), std::make_shared<HostBuffer>(feed_bytes()),
          {.pool = &pool});
  if (join) join(this->plan(), joinable_calls());
}

void HostProgram::feed(ValueId id, const void* data, size_t bytes) {
  feed_offset(id, bytes);
  const Value& v = plan().value(id);
  elements_.store(v.dtype, v.shape.elements(), data, address(id));
}

void HostProgram::run() noexcept {
  for (const Call& call : calls()) call.fn(call.args);
}

std::vector<double> HostProgram::run_timed() {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds(calls().size());
  Clock::time_point before = Clock::now();
  for (const Call& call : calls()) {
    call.fn(call.args);
    const Clock::time_point after = Clock::now();
    // By step: `join` may have moved a call.
    seconds[static_cast<size_t>(call.args.step - plan().steps.data())] =
        std::chrono::duration<double>(after - before).count();
    before = after;
  }
  return seconds;
}

void HostProgram::read(ValueId id, void* data, size_t bytes) const {
  const Operand o = readable(id, bytes);
  const DType dtype = plan().value(id).dtype;
  const size_t held_row = static_cast<size_t>(o.ld) * elements_.bytes(dtype);
  const size_t plain_row = static_cast<size_t>(o.cols) * dtype_bytes(dtype);
  for (int64_t r = 0; r < o.rows; ++r) {
    elements_.load(dtype, o.cols, add_bytes(o.data, static_cast<size_t>(r) * held_row),
                   add_bytes(data, static_cast<size_t>(r) * plain_row));
  }
}

}  // namespace wick
