// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_program.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace wick::cuda {
namespace {

size_t value_bytes(const Plan& plan, ValueId id) {
  const Value& v = plan.value(id);
  return static_cast<size_t>(v.shape.elements()) * dtype_bytes(v.dtype);
}

// Rows of an operand, dense on the host's side.
cudaError_t copy_out(const Operand& o, void* to, cudaStream_t stream) {
  const size_t size = dtype_bytes(o.dtype), width = static_cast<size_t>(o.cols) * size;
  if (width == 0 || o.rows == 0) return cudaSuccess;
  return cudaMemcpy2DAsync(to, width, o.data, static_cast<size_t>(o.ld) * size, width,
                           static_cast<size_t>(o.rows), cudaMemcpyDeviceToHost, stream);
}

}  // namespace

CudaProgram::CudaProgram(Plan plan, const Selection& selection,
                         std::span<const Candidate> candidates, Bindings bindings,
                         ElementBytes element_bytes, const Queue& queue, BufferPtr arena)
    : FlatProgram(std::move(plan), selection, std::move(bindings), element_bytes),
      queue_(queue),
      feeds_host_(feed_bytes()) {
  if (!arena) arena = std::make_shared<DeviceBuffer>(arena_bytes(), queue.stream);
  auto feeds = std::make_shared<DeviceBuffer>(feed_bytes(), queue.stream);
  feeds_device_ = feeds->address();
  resolve(selection, candidates, std::move(arena), std::move(feeds), {.queue = &queue_});
  size_t total = 0;
  for (ValueId id : this->plan().results) {
    result_list_.push_back({id, total});
    total += (value_bytes(this->plan(), id) + 63) / 64 * 64;
  }
  results_ = std::make_unique<PinnedMemory>(total);

  cudaGraph_t graph = nullptr;
  succeed(cudaGraphCreate(&graph, 0), "make a graph");
  try {
    build(graph, selection);
    succeed(cudaGraphInstantiate(&graph_, graph, 0), "make a program of a graph");
  } catch (...) {
    cudaGraphDestroy(graph);
    throw;
  }
  cudaGraphDestroy(graph);
}

template <typename F>
CudaProgram::Nodes CudaProgram::capture(cudaGraph_t graph, const Nodes& after, F&& enqueue) const {
  succeed(cudaStreamBeginCaptureToGraph(queue_.stream, graph, after.data(), nullptr, after.size(),
                                        cudaStreamCaptureModeThreadLocal),
          "begin a capture");
  Nodes last;
  cudaError_t status = cudaSuccess;
  try {
    enqueue();
    status = cudaGetLastError();
    cudaStreamCaptureStatus state;
    const cudaGraphNode_t* nodes = nullptr;
    size_t count = 0;
    if (status == cudaSuccess)
      status = cudaStreamGetCaptureInfo(queue_.stream, &state, nullptr, nullptr, &nodes, nullptr,
                                        &count);
    if (status == cudaSuccess) last.assign(nodes, nodes + count);
  } catch (...) {
    cudaStreamEndCapture(queue_.stream, &graph);
    throw;
  }
  const cudaError_t end = cudaStreamEndCapture(queue_.stream, &graph);
  succeed(status, "record a step");
  succeed(end, "capture a step");
  return last;
}

void CudaProgram::build(cudaGraph_t graph, const Selection& selection) const {
  if (const char* m = getenv("WICK_GRAPH"); m && *m == 'c') {
    capture(graph, {}, [&] {
      enqueue_copies_in();
      for (const Call& call : calls()) call.fn(call.args);
      enqueue_copies_out();
    });
    return;
  }
  const Nodes begin = capture(graph, {}, [&] { enqueue_copies_in(); });
  const std::vector<std::vector<int32_t>> needs = dependencies(selection);
  std::vector<Nodes> last(calls().size());
  std::vector<bool> awaited(calls().size(), false);
  for (size_t i = 0; i < calls().size(); ++i) {
    Nodes after = needs[i].empty() ? begin : Nodes{};
    for (int32_t j : needs[i]) {
      const Nodes& nodes = last[static_cast<size_t>(j)];
      after.insert(after.end(), nodes.begin(), nodes.end());
      awaited[static_cast<size_t>(j)] = true;
    }
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    last[i] = capture(graph, after, [&] { calls()[i].fn(calls()[i].args); });
  }
  Nodes all = calls().empty() ? begin : Nodes{};
  for (size_t i = 0; i < last.size(); ++i)
    if (!awaited[i]) all.insert(all.end(), last[i].begin(), last[i].end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  capture(graph, all, [&] { enqueue_copies_out(); });
}

CudaProgram::~CudaProgram() {
  cudaStreamSynchronize(queue_.stream);
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

void CudaProgram::enqueue_copies_in() const {
  if (feed_bytes() > 0)
    succeed(cudaMemcpyAsync(feeds_device_, feeds_host_.data(), feed_bytes(), cudaMemcpyHostToDevice,
                            queue_.stream),
            "copy feeds");
}

void CudaProgram::enqueue_copies_out() const {
  for (const Result& r : result_list_)
    succeed(copy_out(readable(r.id, value_bytes(plan(), r.id)), results_->data() + r.offset,
                     queue_.stream),
            "copy results");
}

void CudaProgram::feed(ValueId id, const void* data, size_t bytes) {
  const size_t offset = feed_offset(id, bytes);
  if (running_) wait();
  std::memcpy(feeds_host_.data() + offset, data, bytes);
}

void CudaProgram::run() noexcept {
  const cudaError_t status = cudaGraphLaunch(graph_, queue_.stream);
  if (failure_ == cudaSuccess) failure_ = status;
  running_ = true;
}

void CudaProgram::wait() {
  const cudaError_t status = cudaStreamSynchronize(queue_.stream);
  running_ = false;
  const cudaError_t first = std::exchange(failure_, cudaSuccess);
  succeed(first, "start a program");
  succeed(status, "run a program");
}

std::vector<double> CudaProgram::run_timed() {
  std::vector<cudaEvent_t> events(calls().size() + 1);
  for (cudaEvent_t& e : events) succeed(cudaEventCreate(&e), "make an event");
  enqueue_copies_in();
  cudaEventRecord(events[0], queue_.stream);
  for (size_t i = 0; i < calls().size(); ++i) {
    calls()[i].fn(calls()[i].args);
    cudaEventRecord(events[i + 1], queue_.stream);
  }
  enqueue_copies_out();
  wait();
  std::vector<double> seconds;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    float ms = 0;
    cudaEventElapsedTime(&ms, events[i], events[i + 1]);
    seconds.push_back(static_cast<double>(ms) * 1e-3);
  }
  for (cudaEvent_t e : events) cudaEventDestroy(e);
  return seconds;
}

void CudaProgram::read(ValueId id, void* data, size_t bytes) const {
  const Operand o = readable(id, bytes);
  const auto known = std::find_if(result_list_.begin(), result_list_.end(),
                                  [&](const Result& r) { return r.id == id; });
  if (known != result_list_.end()) {
    std::memcpy(data, results_->data() + known->offset, bytes);
    return;
  }
  succeed(copy_out(o, data, queue_.stream), "read a value");
  succeed(cudaStreamSynchronize(queue_.stream), "read a value");
}

}  // namespace wick::cuda
