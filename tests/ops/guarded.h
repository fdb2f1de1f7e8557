// SPDX-License-Identifier: Apache-2.0
// Operands of a back end in memory whose every other byte is known.
#pragma once

#include <memory>
#include <vector>

#include "backend/flat_program.h"
#include "ops/case.h"

namespace wick::ops {

// One operand between guards, with gaps between its rows where the case asks for them. Guard bytes,
// and outputs that will be written, are NaN in every float type, so that reading them shows.
class Guarded {
 public:
  Guarded(Backend& backend, const Arg& arg, int64_t gap, bool is_output);
  // A frozen matrix as the back end has prepared it.
  Guarded(Backend& backend, const Arg& arg, const Operand& operand, const Buffer& prepared);

  Operand operand() const { return operand_; }
  // Whether all bytes outside the elements are as they were; for inputs, the elements too.
  bool intact() const;
  std::vector<std::byte> element_bytes() const;
  // As doubles, through the back end's download.
  std::vector<double> contents() const;

 private:
  size_t row_offset(int64_t row) const;
  std::vector<std::byte> now() const;

  Backend& backend_;
  const Arg& arg_;
  bool is_output_;
  size_t first_ = 0, element_size_ = 0;
  Operand operand_;
  BufferPtr memory_;
  std::vector<std::byte> before_;
};

// One step of a case on one back end, with guarded operands and scratch.
class GuardedStep {
 public:
  // Throws: kUnsupported if the back end has no kernel for it.
  GuardedStep(Backend& backend, const Case& c, Dir dir);

  void run();
  const std::vector<std::unique_ptr<Guarded>>& outputs() const { return out_; }
  // "" or what was touched that must not be.
  std::string damage() const;

 private:
  Backend& backend_;
  Plan plan_;
  std::unique_ptr<Program> program_;
  std::vector<std::unique_ptr<Guarded>> in_, out_;  // null where absent
  std::vector<Operand> in_operands_, out_operands_;
  BufferPtr scratch_;
  size_t scratch_bytes_ = 0;
  StepArgs args_;
  KernelFn fn_ = nullptr;
};

}  // namespace wick::ops
