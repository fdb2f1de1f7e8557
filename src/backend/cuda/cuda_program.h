// SPDX-License-Identifier: Apache-2.0
// CudaProgram: a plan captured into one CUDA graph, so that a run is one launch. The host's side of
// feeds and results is there twice: the next run is fed, and the last one read, while the device
// works. Feeds have a stream of their own and are copied as soon as the program's last run is done,
// whatever other programs are doing then; results follow the launch.
#pragma once

#include <array>

#include "backend/ahead.h"
#include "backend/cuda/fused.h"
#include "backend/cuda/joined.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/queue.h"
#include "backend/cuda/reverse.h"
#include "backend/cuda/widened.h"
#include "backend/flat_program.h"

namespace wick::cuda {

class CudaProgram final : public FlatProgram, public AheadProgram {
 public:
  // `queue`, `copies` and `candidates` must outlive the program; every binding must be a
  // DeviceBuffer. Feeds are copied in the order of `copies`.
  // Throws: kInternal, kOutOfMemory, kDevice where a step could not be captured.
  CudaProgram(Plan plan, const Selection& selection, std::span<const Candidate> candidates,
              Bindings bindings, ElementBytes element_bytes, const Queue& queue,
              cudaStream_t copies, BufferPtr arena);
  ~CudaProgram() override;

  // Waits only where the feeds of the run before the last one have not been copied yet.
  void feed(ValueId id, const void* data, size_t bytes) override;
  void run() noexcept override;
  void wait() override;
  void wait_oldest() override;
  std::vector<double> run_timed() override;
  void read(ValueId id, void* data, size_t bytes) const override;

 private:
  static constexpr size_t kSlots = AheadProgram::kRuns;
  struct Result {
    ValueId id;
    Operand from;
    size_t offset;  // in a slot of results_
  };
  // Pinned memory of one run, and when the device has done with it.
  struct Slot {
    std::unique_ptr<PinnedMemory> memory;
    cudaEvent_t done = nullptr;
  };
  using Slots = std::array<Slot, kSlots>;
  static void make(Slots& slots, size_t bytes);
  // The slot that the next run's feeds are written to, with all that was fed before.
  void open_feeds();
  cudaError_t enqueue_copies_in();
  cudaError_t enqueue_copies_out(const Slot& to) const;
  // Enqueues the step and those that are made with it, and says how many that is.
  size_t enqueue(size_t step);
  // Keeps the first failure of starting a run until someone waits.
  void note(cudaError_t status) noexcept {
    if (failure_ == cudaSuccess) failure_ = status;
  }
  void report(cudaError_t status);

  Queue queue_;
  cudaStream_t copies_;
  Slots feeds_, results_;
  size_t fed_slot_ = 0;
  bool fed_ = false;                 // since the last run
  size_t started_ = 0, waited_ = 0;  // runs; run i has results_[i % kSlots]
  std::unique_ptr<Widened> widened_;
  std::unique_ptr<Joined> joined_;
  std::unique_ptr<Fused> fused_;
  std::unique_ptr<Reverse> reverse_;
  std::byte* feeds_device_ = nullptr;
  std::vector<Result> result_list_;
  cudaGraphExec_t graph_ = nullptr;
  cudaError_t failure_ = cudaSuccess;
};

}  // namespace wick::cuda
