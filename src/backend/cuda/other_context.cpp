// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/other_context.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

namespace wick::cuda {
namespace {

template <typename F>
bool find(const char* name, unsigned version, F& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess)
    return false;
  function = reinterpret_cast<F>(found);
  return true;
}

}  // namespace

struct OtherContext::Impl {
  PFN_cuCtxCreate_v3020 create = nullptr;
  PFN_cuCtxDestroy_v4000 destroy = nullptr;
  PFN_cuCtxPushCurrent_v4000 push = nullptr;
  PFN_cuCtxPopCurrent_v4000 pop = nullptr;
  CUcontext context = nullptr;
};

std::unique_ptr<OtherContext> OtherContext::make() {
  auto impl = std::make_unique<Impl>();
  int device = 0;
  CUcontext made = nullptr;
  if (!find("cuCtxCreate", 11000, impl->create) || !find("cuCtxDestroy", 11000, impl->destroy) ||
      !find("cuCtxPushCurrent", 11000, impl->push) || !find("cuCtxPopCurrent", 11000, impl->pop) ||
      cudaGetDevice(&device) != cudaSuccess ||
      impl->create(&impl->context, 0, device) != CUDA_SUCCESS)
    return nullptr;
  impl->pop(&made);
  return std::unique_ptr<OtherContext>(new OtherContext(std::move(impl)));
}

OtherContext::OtherContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OtherContext::~OtherContext() { impl_->destroy(impl_->context); }

OtherContext::Visit::Visit(const OtherContext* context) : context_(context) {
  if (context_ != nullptr) context_->impl_->push(context_->impl_->context);
}
OtherContext::Visit::~Visit() {
  CUcontext left = nullptr;
  if (context_ != nullptr) context_->impl_->pop(&left);
}

}  // namespace wick::cuda
