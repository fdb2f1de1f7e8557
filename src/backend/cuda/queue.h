// SPDX-License-Identifier: Apache-2.0
// What the host side of a CUDA kernel sees, and each file's list of them.
//
// A candidate's function enqueues launches on the queue's stream and returns; it may run under
// stream capture, so it allocates nothing, waits for nothing and reads no device memory. Operands
// hold device pointers. Every float that decides how a step runs comes from its attributes.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <span>

#include "backend/kernels.h"

namespace wick::cuda {

// Which code paths may be used: sm_80 is what every card since 8.0 runs, sm_90 adds wgmma and TMA.
enum class Arch : int { kSm80, kSm90 };

class Blas;

// Small products that wait to be launched together (skinny.h).
struct SkinnyList {
  SkinnyList();
  ~SkinnyList();
  struct Impl;
  std::unique_ptr<Impl> impl;
};

struct Queue {
  cudaStream_t stream = nullptr;
  int sms = 0;  // multiprocessors
  Arch arch = Arch::kSm80;
  const Blas* blas = nullptr;    // null where cuBLASLt was not found
  SkinnyList* skinny = nullptr;  // empty between steps of other kinds
  // Kernels may be set up, and read frozen weights, before what comes before them is done.
  bool early = true;
};

inline const Queue& queue(const StepArgs& args) { return *static_cast<const Queue*>(args.queue); }

// Of a row of a matrix on the device: rows of codes begin at multiples of 16.
inline size_t device_row_bytes(DType dtype, int64_t cols) {
  const size_t bytes = row_bytes(dtype, cols);
  return dtype_is_quantized(dtype) ? (bytes + 15) / 16 * 16 : bytes;
}

using Candidates = std::span<const Candidate>;
Candidates linear_candidates(Arch arch);
Candidates attention_candidates(Arch arch);
Candidates norm_candidates(Arch arch);
Candidates layer_norm_candidates(Arch arch);
Candidates softmax_candidates(Arch arch);
Candidates elementwise_candidates(Arch arch);
Candidates row_candidates(Arch arch);
Candidates column_candidates(Arch arch);
Candidates sample_candidates(Arch arch);
Candidates head_candidates(Arch arch);
Candidates kl_head_candidates(Arch arch);
Candidates preference_candidates(Arch arch);
Candidates optimizer_candidates(Arch arch);
Candidates matrix_optimizer_candidates(Arch arch);

}  // namespace wick::cuda
