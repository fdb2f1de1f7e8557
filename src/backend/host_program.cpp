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

// Offsets of the feeds, one after the other; the total is at the end.
std::vector<int64_t> lay_out_feeds(const Plan& plan, ElementBytes element_bytes) {
  std::vector<int64_t> offset(plan.values.size() + 1, -1);
  int64_t total = 0;
  for (ValueId id = 0; id < static_cast<ValueId>(plan.values.size()); ++id) {
    const Value& v = plan.value(id);
    if (plan.is_view(id) || v.kind != Kind::kFeed) continue;
    offset[static_cast<size_t>(id)] = total;
    size_t bytes = static_cast<size_t>(v.shape.elements()) * element_bytes(v.dtype);
    total += static_cast<int64_t>(round_up(bytes, kAlignment));
  }
  offset.back() = total;
  return offset;
}

const HostBuffer& host_buffer(const Buffer& buffer) {
  auto* host = dynamic_cast<const HostBuffer*>(&buffer);
  WICK_CHECK(host != nullptr, "a buffer of another back end");
  return *host;
}

}  // namespace

HostBuffer::HostBuffer(size_t bytes) : bytes_(bytes) {
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
         " MiB of host memory; use a smaller batch or --memory");
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
                         const HostElements& elements, ThreadPool& pool, BufferPtr arena)
    : plan_(std::move(plan)),
      bindings_(std::move(bindings)),
      forms_(selection.forms),
      elements_(elements),
      placement_(place(plan_, elements.bytes, selection.scratch_bytes())),
      feed_offset_(lay_out_feeds(plan_, elements.bytes)),
      feeds_(static_cast<size_t>(feed_offset_.back())),
      arena_(arena ? std::dynamic_pointer_cast<HostBuffer>(arena)
                   : std::make_shared<HostBuffer>(arena_bytes())) {
  WICK_CHECK(arena_ != nullptr && arena_->bytes() >= arena_bytes(), "an arena that is too small");
  WICK_CHECK(selection.steps.size() == plan_.steps.size(), "a selection of another plan");
  bindings_.resize(plan_.values.size());
  size_t count = 0;
  for (const Step& step : plan_.steps) count += step.inputs.size() + step.outputs.size();
  operands_.reserve(count);
  calls_.reserve(plan_.steps.size());
  for (size_t i = 0; i < plan_.steps.size(); ++i) {
    const Step& step = plan_.steps[i];
    const Operand* first = operands_.data() + operands_.size();
    for (ValueId id : step.inputs) operands_.push_back(resolve(id));
    for (const Output& o : step.outputs) operands_.push_back(resolve(o.value));
    int64_t scratch = selection.steps[i].scratch > 0 ? placement_.scratch_offset[i] : -1;
    const Candidate& candidate = candidates[static_cast<size_t>(selection.steps[i].candidate)];
    calls_.push_back({.fn = candidate.fn,
                      .args = {.step = &step,
                               .in = {first, step.inputs.size()},
                               .out = {first + step.inputs.size(), step.outputs.size()},
                               .scratch = scratch >= 0 ? arena_->data() + scratch : nullptr,
                               .pool = &pool}});
  }
}

std::byte* HostProgram::address(ValueId id) const {
  const Value& v = plan_.value(id);
  const Value& root = plan_.value(v.root);
  auto index = static_cast<size_t>(v.root);
  size_t size = elements_.bytes(v.dtype), offset = static_cast<size_t>(v.offset) * size;
  switch (root.kind) {
    case Kind::kFeed:
      return feeds_.data() + feed_offset_[index] + offset;
    case Kind::kTemp:
      WICK_CHECK(placement_.offset[index] >= 0, "value ", v.name, " has no place in the arena");
      return arena_->data() + placement_.offset[index] + offset;
    case Kind::kWeight:
    case Kind::kState:
      break;
  }
  const BufferPtr& bound = bindings_[index];
  WICK_CHECK(bound != nullptr, "value ", root.name, " is bound to no buffer");
  if (forms_[index] != WeightForm::kRows) return host_buffer(*bound).data();
  size_t wanted = static_cast<size_t>(root.shape.elements()) * size;
  if (size == 0) {
    WICK_CHECK(v.offset == 0, "value ", v.name, " is a part of a quantised weight");
    wanted = static_cast<size_t>(root.shape.rows()) * row_bytes(root.dtype, root.shape.cols());
  }
  WICK_CHECK(bound->bytes() >= wanted, "value ", root.name, " needs ", wanted,
             " bytes, its buffer has ", bound->bytes());
  return host_buffer(*bound).data() + offset;
}

Operand HostProgram::resolve(ValueId id) const {
  if (id == kNone) return {};
  Operand o = operand_of(plan_, forms_, id);
  o.data = address(id);
  return o;
}

void HostProgram::feed(ValueId id, const void* data, size_t bytes) {
  const Value& v = plan_.value(id);
  WICK_CHECK(v.kind == Kind::kFeed && !plan_.is_view(id), "value ", v.name, " is no feed");
  size_t wanted = static_cast<size_t>(v.shape.elements()) * dtype_bytes(v.dtype);
  WICK_CHECK(bytes == wanted, "feed ", v.name, " takes ", wanted, " bytes, got ", bytes);
  elements_.store(v.dtype, v.shape.elements(), data, address(id));
}

void HostProgram::run() noexcept {
  for (const Call& call : calls_) call.fn(call.args);
}

std::vector<double> HostProgram::run_timed() {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  seconds.reserve(calls_.size());
  Clock::time_point before = Clock::now();
  for (const Call& call : calls_) {
    call.fn(call.args);
    const Clock::time_point after = Clock::now();
    seconds.push_back(std::chrono::duration<double>(after - before).count());
    before = after;
  }
  return seconds;
}

void HostProgram::read(ValueId id, void* data, size_t bytes) const {
  const Value& v = plan_.value(id);
  size_t wanted = static_cast<size_t>(v.shape.elements()) * dtype_bytes(v.dtype);
  WICK_CHECK(bytes == wanted, "value ", v.name, " has ", wanted, " bytes, asked for ", bytes);
  Operand o = resolve(id);
  size_t held_row = static_cast<size_t>(o.ld) * elements_.bytes(v.dtype);
  size_t plain_row = static_cast<size_t>(o.cols) * dtype_bytes(v.dtype);
  for (int64_t r = 0; r < o.rows; ++r) {
    elements_.load(v.dtype, o.cols, add_bytes(o.data, static_cast<size_t>(r) * held_row),
                   add_bytes(data, static_cast<size_t>(r) * plain_row));
  }
}

}  // namespace wick
