// SPDX-License-Identifier: Apache-2.0
// ref: the meaning of every op, as plain loops templated on the scalar S. Every float value of
// any dtype is held as S and never rounded to its dtype; i32 values stay int32. Run in
// complex<double> it proves gradients to rounding (complex step), so kernels use analytic functions
// only: comparisons look at real parts, and nothing takes an absolute value or a conjugate.
//
// Sums run in double for S = float, else in S. One thread; not made to be fast.
#pragma once

#include <complex>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "backend/host_program.h"
#include "backend/kernels.h"
#include "base/threads.h"

namespace wick {

// S is float, double or std::complex<double>.
template <class S>
class RefBackend final : public Backend {
 public:
  DeviceInfo info() const override;
  ElementBytes element_sizes() const override;
  BufferPtr allocate(DType dtype, int64_t count) override;
  // From complex S the real part is downloaded.
  void upload(Buffer& to, DType dtype, int64_t offset, int64_t count, const void* data) override;
  void download(const Buffer& from, DType dtype, int64_t offset, int64_t count,
                void* data) const override;
  // A quantised weight is held as the numbers that its codes stand for.
  BufferPtr prepare(const Value& weight, WeightForm form, const void* rows) override;
  Selection select(const Plan& plan) const override;
  std::unique_ptr<Program> compile(const Plan& plan, const Bindings& bindings,
                                   BufferPtr arena = nullptr) override;

  // The elements of a float buffer, for tests that need more than upload() can say.
  static S* elements(const Buffer& buffer);
  // The elements of a float value of a program that this back end compiled.
  static S* elements(const Program& program, ValueId id);

 private:
  ThreadPool pool_{1};
};

template <class S>
std::span<const Candidate> ref_candidates();

// In float.
std::unique_ptr<Backend> make_ref_backend(const BackendOptions& options);

}  // namespace wick
