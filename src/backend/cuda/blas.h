// SPDX-License-Identifier: Apache-2.0
// cuBLASLt, opened at run time: the binary starts on machines that do not have it.
#pragma once

#include <memory>
#include <string>

#include "backend/cuda/product.h"

namespace wick::cuda {

class Blas {
 public:
  // What a product may use beside its operands.
  static constexpr size_t kWorkspace = size_t{16} << 20;

  // Null, and why in `problem`, where the library is not found or does not start. `table` is the
  // file with this card's choices; "": none, and the library's own first choice is taken.
  static std::unique_ptr<Blas> open(const std::string& table, std::string& problem);
  virtual ~Blas() = default;
  virtual std::string version() const = 0;

  // Enqueues p with a and b of one type (f32, bf16 or f16) and y of that type or f32; f32 operands
  // are multiplied in f32 proper. Every row must lie aligned to 16 bytes. `bias`, if any, is of y's
  // type. `workspace` has kWorkspace bytes, or is null. False where the library has no kernel for
  // it.
  //
  // Which of the library's kernels is used for given types and sizes is measured when they first
  // come up on a card, and kept in the table: the same sizes have the same kernel, and so the same
  // bits, in every later run.
  virtual bool multiply(const Queue& queue, const Product& p, const Operand& a, const Operand& b,
                        const Operand& y, const Operand& bias, void* workspace) const = 0;

  // Gives back what measuring took: a context of its own. After the products of a program.
  virtual void settle() const = 0;
};

}  // namespace wick::cuda
