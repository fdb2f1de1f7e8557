// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_program.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/blas.h"
#include "backend/cuda/copies.h"
#include "backend/cuda/skinny.h"
#include "base/check.h"

namespace wick::cuda {
namespace {

size_t value_bytes(const Plan& plan, ValueId id) {
  const Value& v = plan.value(id);
  return static_cast<size_t>(v.shape.elements()) * dtype_bytes(v.dtype);
}

// Rows of an operand, dense on the host's side, which is pinned where `pinned` says so.
cudaError_t copy_out(const Operand& o, void* to, bool pinned, cudaStream_t stream) {
  const size_t size = dtype_bytes(o.dtype), width = static_cast<size_t>(o.cols) * size;
  if (width == 0 || o.rows == 0) return cudaSuccess;
  const size_t bytes = width * static_cast<size_t>(o.rows);
  const bool dense = o.rows == 1 || o.ld == o.cols;
  if (dense && pinned && bytes <= kFewBytes && size % sizeof(uint32_t) == 0)
    return copy_few(to, o.data, bytes, stream);
  if (dense) return cudaMemcpyAsync(to, o.data, bytes, cudaMemcpyDeviceToHost, stream);
  return cudaMemcpy2DAsync(to, width, o.data, static_cast<size_t>(o.ld) * size, width,
                           static_cast<size_t>(o.rows), cudaMemcpyDeviceToHost, stream);
}

}  // namespace

CudaProgram::CudaProgram(Plan plan, const Selection& selection,
                         std::span<const Candidate> candidates, Bindings bindings,
                         ElementBytes element_bytes, const Queue& queue, cudaStream_t copies,
                         BufferPtr arena)
    : FlatProgram(std::move(plan), selection, std::move(bindings), element_bytes),
      queue_(queue),
      copies_(copies) {
  if (!arena) arena = std::make_shared<DeviceBuffer>(arena_bytes(), queue.stream);
  auto feeds = std::make_shared<DeviceBuffer>(feed_bytes(), queue.stream);
  feeds_device_ = feeds->address();
  resolve(selection, candidates, std::move(arena), std::move(feeds), {.queue = &queue_});
  widened_ = std::make_unique<Widened>(this->plan(), calls(), queue_);
  joined_ = std::make_unique<Joined>(this->plan(), widened_->calls(), queue_);
  fused_ = std::make_unique<Fused>(this->plan(), widened_->calls(), *widened_);
  reverse_ = std::make_unique<Reverse>(this->plan(), widened_->calls());
  size_t total = 0;
  for (ValueId id : this->plan().results) {
    const size_t bytes = value_bytes(this->plan(), id);
    result_list_.push_back({id, readable(id, bytes), total});
    total += (bytes + 63) / 64 * 64;
  }
  make(feeds_, feed_bytes());
  make(results_, total);

  succeed(cudaStreamBeginCapture(queue_.stream, cudaStreamCaptureModeThreadLocal),
          "begin a capture");
  cudaGraph_t graph = nullptr;
  try {
    for (size_t i = 0; i < calls().size();) i += enqueue(i);
    flush(queue_);
  } catch (...) {
    cudaStreamEndCapture(queue_.stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  const cudaError_t launched = cudaGetLastError();
  const cudaError_t captured = cudaStreamEndCapture(queue_.stream, &graph);
  if (queue_.blas != nullptr) queue_.blas->settle();
  succeed(launched, "record a step");
  succeed(captured, "capture a plan");
  const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  succeed(made, "make a graph of a plan");
  // The first feeds come after what was enqueued to clear their memory.
  for (const Slot& slot : results_)
    succeed(cudaEventRecord(slot.done, queue_.stream), "make a program");
}

// Only linears leave something on the list of small products, and mind it themselves.
size_t CudaProgram::enqueue(size_t step) {
  const Queue& queue = widened_->prepare(step);
  if (size_t made = joined_->enqueue(queue, step)) return made;
  if (size_t made = fused_->enqueue(queue, step)) return made;
  if (size_t made = reverse_->enqueue(queue, step)) return made;
  const Call& call = widened_->calls()[step];
  if (call.args.step->op != Op::kLinear) flush(queue);
  call.fn(call.args);
  return 1;
}

CudaProgram::~CudaProgram() {
  cudaStreamSynchronize(queue_.stream);
  for (Slots* slots : {&feeds_, &results_})
    for (Slot& slot : *slots)
      if (slot.done != nullptr) cudaEventDestroy(slot.done);
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

void CudaProgram::make(Slots& slots, size_t bytes) {
  for (Slot& slot : slots) {
    slot.memory = std::make_unique<PinnedMemory>(bytes);
    succeed(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "make an event");
  }
}

cudaError_t CudaProgram::enqueue_copies_in() {
  if (!std::exchange(fed_, false)) return cudaSuccess;
  const Slot &from = feeds_[fed_slot_], &last = results_[(started_ + kSlots - 1) % kSlots];
  cudaError_t status = cudaStreamWaitEvent(copies_, last.done, 0);
  if (status == cudaSuccess)
    status = cudaMemcpyAsync(feeds_device_, from.memory->data(), feed_bytes(),
                             cudaMemcpyHostToDevice, copies_);
  if (status == cudaSuccess) status = cudaEventRecord(from.done, copies_);
  return status == cudaSuccess ? cudaStreamWaitEvent(queue_.stream, from.done, 0) : status;
}

cudaError_t CudaProgram::enqueue_copies_out(const Slot& to) const {
  for (const Result& r : result_list_) {
    const cudaError_t status = copy_out(r.from, to.memory->data() + r.offset, true, queue_.stream);
    if (status != cudaSuccess) return status;
  }
  return cudaEventRecord(to.done, queue_.stream);
}

void CudaProgram::open_feeds() {
  const Slot &last = feeds_[fed_slot_], &next = feeds_[(fed_slot_ + 1) % kSlots];
  succeed(cudaEventSynchronize(next.done), "copy feeds");
  std::memcpy(next.memory->data(), last.memory->data(), feed_bytes());
  fed_slot_ = (fed_slot_ + 1) % kSlots;
  fed_ = true;
}

void CudaProgram::feed(ValueId id, const void* data, size_t bytes) {
  const size_t offset = feed_offset(id, bytes);
  if (!fed_) open_feeds();
  std::memcpy(feeds_[fed_slot_].memory->data() + offset, data, bytes);
}

void CudaProgram::run() noexcept {
  note(enqueue_copies_in());
  note(cudaGraphLaunch(graph_, queue_.stream));
  note(enqueue_copies_out(results_[started_++ % kSlots]));
}

void CudaProgram::report(cudaError_t status) {
  succeed(std::exchange(failure_, cudaSuccess), "start a program");
  succeed(status, "run a program");
}

void CudaProgram::wait() {
  waited_ = started_;
  report(cudaStreamSynchronize(queue_.stream));
}

void CudaProgram::wait_oldest() {
  WICK_CHECK(waited_ < started_, "every run was waited for");
  report(cudaEventSynchronize(results_[waited_++ % kSlots].done));
}

std::vector<double> CudaProgram::run_timed() {
  std::vector<cudaEvent_t> events(calls().size() + 1);
  for (cudaEvent_t& e : events) succeed(cudaEventCreate(&e), "make an event");
  std::vector<std::pair<size_t, size_t>> parts;  // steps made together: the first, the one behind
  note(enqueue_copies_in());
  cudaEventRecord(events[0], queue_.stream);
  for (size_t i = 0; i < calls().size(); i = parts.back().second) {
    parts.emplace_back(i, i + enqueue(i));
    flush(queue_);
    cudaEventRecord(events[parts.back().second], queue_.stream);
  }
  note(enqueue_copies_out(results_[started_++ % kSlots]));
  wait();
  std::vector<double> seconds(calls().size(), 0.0);
  for (const auto& [first, behind] : parts) {
    float ms = 0;
    cudaEventElapsedTime(&ms, events[first], events[behind]);
    seconds[first] = static_cast<double>(ms) * 1e-3;
  }
  for (cudaEvent_t e : events) cudaEventDestroy(e);
  return seconds;
}

void CudaProgram::read(ValueId id, void* data, size_t bytes) const {
  const Operand o = readable(id, bytes);
  const auto known = std::find_if(result_list_.begin(), result_list_.end(),
                                  [&](const Result& r) { return r.id == id; });
  if (known != result_list_.end()) {
    const Slot& last = results_[(waited_ + kSlots - 1) % kSlots];
    std::memcpy(data, last.memory->data() + known->offset, bytes);
    return;
  }
  succeed(copy_out(o, data, false, queue_.stream), "read a value");
  succeed(cudaStreamSynchronize(queue_.stream), "read a value");
}

}  // namespace wick::cuda
