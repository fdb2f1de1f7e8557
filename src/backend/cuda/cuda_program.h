// SPDX-License-Identifier: Apache-2.0
// CudaProgram: a plan captured into one CUDA graph. Feeds go in and results come out as copies
// inside the graph, from and to pinned memory, so that a run is one launch.
#pragma once

#include "backend/cuda/fused.h"
#include "backend/cuda/joined.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/queue.h"
#include "backend/cuda/reverse.h"
#include "backend/flat_program.h"

namespace wick::cuda {

class CudaProgram final : public FlatProgram {
 public:
  // `queue` and `candidates` must outlive the program; every binding must be a DeviceBuffer.
  // Throws: kInternal, kOutOfMemory, kDevice where a step could not be captured.
  CudaProgram(Plan plan, const Selection& selection, std::span<const Candidate> candidates,
              Bindings bindings, ElementBytes element_bytes, const Queue& queue, BufferPtr arena);
  ~CudaProgram() override;

  // Waits for a run that is still under way.
  void feed(ValueId id, const void* data, size_t bytes) override;
  void run() noexcept override;
  void wait() override;
  std::vector<double> run_timed() override;
  void read(ValueId id, void* data, size_t bytes) const override;

 private:
  struct Result {
    ValueId id;
    size_t offset;  // in results_
  };
  void enqueue_copies_in() const;
  void enqueue_copies_out() const;
  // Enqueues the step and those that are made with it, and says how many that is.
  size_t enqueue(size_t step);

  Queue queue_;
  PinnedMemory feeds_host_;
  std::unique_ptr<Joined> joined_;
  std::unique_ptr<Fused> fused_;
  std::unique_ptr<Reverse> reverse_;
  std::byte* feeds_device_ = nullptr;
  std::vector<Result> result_list_;
  std::unique_ptr<PinnedMemory> results_;
  cudaGraphExec_t graph_ = nullptr;
  cudaError_t failure_ = cudaSuccess;
  bool running_ = false;
};

}  // namespace wick::cuda
