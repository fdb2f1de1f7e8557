// SPDX-License-Identifier: Apache-2.0
#include "backend/ref/ref.h"

#include <algorithm>
#include <cstring>

#include "backend/ref/scalar.h"
#include "base/check.h"
#include "base/elements.h"
#include "quant/rows.h"

namespace wick {
namespace {

bool accept_all(const StepArgs&) { return true; }

template <class S>
size_t held_bytes(DType dtype) {
  return dtype_is_float(dtype) || dtype_is_quantized(dtype) ? sizeof(S) : dtype_bytes(dtype);
}

template <class S>
void store(DType dtype, int64_t count, const void* plain, void* held) {
  with_element(dtype, [&](auto zero) {
    using T = decltype(zero);
    if (!dtype_is_float(dtype)) {
      std::memcpy(held, plain, static_cast<size_t>(count) * sizeof(T));
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      static_cast<S*>(held)[i] = static_cast<S>(to_double(static_cast<const T*>(plain)[i]));
  });
}

template <class S>
void load(DType dtype, int64_t count, const void* held, void* plain) {
  with_element(dtype, [&](auto zero) {
    using T = decltype(zero);
    if (!dtype_is_float(dtype)) {
      std::memcpy(plain, held, static_cast<size_t>(count) * sizeof(T));
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      static_cast<T*>(plain)[i] = from_double<T>(ref::real_part(static_cast<const S*>(held)[i]));
  });
}

template <class S>
HostElements held_elements() {
  return {.bytes = held_bytes<S>, .store = store<S>, .load = load<S>};
}

constexpr Candidate kernel(Op op, Dir dir, const char* name, KernelFn fn) {
  return {.op = op, .dir = dir, .name = name, .fn = fn, .accepts = accept_all};
}

}  // namespace

template <class S>
std::span<const Candidate> ref_candidates() {
  using namespace ref;
  constexpr Dir kFwd = Dir::kForward, kBwd = Dir::kBackward;
  static constexpr Candidate kList[] = {
      kernel(Op::kEmbed, kFwd, "embed_fwd", embed_fwd<S>),
      kernel(Op::kEmbed, kBwd, "embed_bwd", embed_bwd<S>),
      kernel(Op::kLinear, kFwd, "linear_fwd", linear_fwd<S>),
      kernel(Op::kLinear, kBwd, "linear_bwd", linear_bwd<S>),
      kernel(Op::kRmsNorm, kFwd, "rms_norm_fwd", rms_norm_fwd<S>),
      kernel(Op::kRmsNorm, kBwd, "rms_norm_bwd", rms_norm_bwd<S>),
      kernel(Op::kAddRmsNorm, kFwd, "add_rms_norm_fwd", add_rms_norm_fwd<S>),
      kernel(Op::kAddRmsNorm, kBwd, "add_rms_norm_bwd", add_rms_norm_bwd<S>),
      kernel(Op::kLayerNorm, kFwd, "layer_norm_fwd", layer_norm_fwd<S>),
      kernel(Op::kLayerNorm, kBwd, "layer_norm_bwd", layer_norm_bwd<S>),
      kernel(Op::kSoftmax, kFwd, "softmax_fwd", softmax_fwd<S>),
      kernel(Op::kSoftmax, kBwd, "softmax_bwd", softmax_bwd<S>),
      kernel(Op::kRope, kFwd, "rope_fwd", rope_fwd<S>),
      kernel(Op::kRope, kBwd, "rope_bwd", rope_bwd<S>),
      kernel(Op::kAttention, kFwd, "attention_fwd", attention_fwd<S>),
      kernel(Op::kAttention, kBwd, "attention_bwd", attention_bwd<S>),
      kernel(Op::kGatedAct, kFwd, "gated_act_fwd", gated_act_fwd<S>),
      kernel(Op::kGatedAct, kBwd, "gated_act_bwd", gated_act_bwd<S>),
      kernel(Op::kAdd, kFwd, "add_fwd", add_fwd<S>),
      kernel(Op::kScale, kFwd, "scale_fwd", scale_fwd<S>),
      kernel(Op::kScale, kBwd, "scale_bwd", scale_fwd<S>),
      kernel(Op::kBias, kFwd, "bias_fwd", bias_fwd<S>),
      kernel(Op::kBias, kBwd, "bias_bwd", bias_bwd<S>),
      kernel(Op::kDropout, kFwd, "dropout_fwd", dropout_fwd<S>),
      kernel(Op::kDropout, kBwd, "dropout_bwd", dropout_fwd<S>),
      kernel(Op::kGatherRows, kFwd, "gather_rows_fwd", gather_rows_fwd<S>),
      kernel(Op::kGatherRows, kBwd, "gather_rows_bwd", gather_rows_bwd<S>),
      kernel(Op::kHead, kFwd, "head_fwd", head_fwd<S>),
      kernel(Op::kHead, kBwd, "head_bwd", head_bwd<S>),
      kernel(Op::kSegmentSum, kFwd, "segment_sum_fwd", segment_sum_fwd<S>),
      kernel(Op::kSegmentSum, kBwd, "segment_sum_bwd", segment_sum_bwd<S>),
      kernel(Op::kPreferenceLoss, kFwd, "preference_loss_fwd", preference_loss_fwd<S>),
      kernel(Op::kPreferenceLoss, kBwd, "preference_loss_bwd", preference_loss_bwd<S>),
      kernel(Op::kKlHead, kFwd, "kl_head_fwd", kl_head_fwd<S>),
      kernel(Op::kKlHead, kBwd, "kl_head_bwd", kl_head_bwd<S>),
      kernel(Op::kColumnScale, kFwd, "column_scale_fwd", column_scale_fwd<S>),
      kernel(Op::kColumnScale, kBwd, "column_scale_bwd", column_scale_bwd<S>),
      kernel(Op::kColumnNorm, kFwd, "column_norm_fwd", column_norm_fwd<S>),
      kernel(Op::kGradNorm, kFwd, "grad_norm_fwd", grad_norm_fwd<S>),
      kernel(Op::kAdamw, kFwd, "adamw_fwd", adamw_fwd<S>),
      kernel(Op::kSgd, kFwd, "sgd_fwd", sgd_fwd<S>),
      kernel(Op::kLion, kFwd, "lion_fwd", lion_fwd<S>),
      kernel(Op::kMuon, kFwd, "muon_fwd", muon_fwd<S>),
      kernel(Op::kAdafactor, kFwd, "adafactor_fwd", adafactor_fwd<S>),
      kernel(Op::kAdamw8, kFwd, "adamw8_fwd", adamw8_fwd<S>),
      kernel(Op::kSample, kFwd, "sample_fwd", sample_fwd<S>),
      kernel(Op::kCopy, kFwd, "copy_fwd", copy_fwd<S>),
  };
  return kList;
}

template <class S>
DeviceInfo RefBackend<S>::info() const {
  DeviceInfo info;
  info.name = "ref";
  info.description = "reference loops, one thread: the meaning of every op";
  return info;
}

template <class S>
ElementBytes RefBackend<S>::element_sizes() const {
  return held_bytes<S>;
}

template <class S>
BufferPtr RefBackend<S>::allocate(DType dtype, int64_t count) {
  return host_allocate(held_elements<S>(), dtype, count);
}

template <class S>
void RefBackend<S>::upload(Buffer& to, DType dtype, int64_t offset, int64_t count,
                           const void* data) {
  host_upload(held_elements<S>(), to, dtype, offset, count, data);
}

template <class S>
void RefBackend<S>::download(const Buffer& from, DType dtype, int64_t offset, int64_t count,
                             void* data) const {
  host_download(held_elements<S>(), from, dtype, offset, count, data);
}

template <class S>
BufferPtr RefBackend<S>::prepare(const Value& weight, WeightForm form, const void* rows) {
  if (!dtype_is_quantized(weight.dtype)) return Backend::prepare(weight, form, rows);
  const int64_t cols = weight.shape.cols();
  BufferPtr made = allocate(weight.dtype, weight.shape.elements());
  S* to = elements(*made);
  const auto* from = static_cast<const std::byte*>(rows);
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < weight.shape.rows(); ++r, from += row_bytes(weight.dtype, cols)) {
    dequantize_row(weight.dtype, from, cols, row.data());
    std::copy(row.begin(), row.end(), to + r * cols);
  }
  return made;
}

template <class S>
Selection RefBackend<S>::select(const Plan& plan) const {
  return select_candidates(plan, ref_candidates<S>(), 1, "ref");
}

template <class S>
std::unique_ptr<Program> RefBackend<S>::compile(const Plan& plan, const Bindings& bindings,
                                                BufferPtr arena) {
  return std::make_unique<HostProgram>(plan, select(plan), ref_candidates<S>(), bindings,
                                       held_elements<S>(), pool_, std::move(arena));
}

template <class S>
S* RefBackend<S>::elements(const Buffer& buffer) {
  return reinterpret_cast<S*>(dynamic_cast<const HostBuffer&>(buffer).data());
}

template <class S>
S* RefBackend<S>::elements(const Program& program, ValueId id) {
  return reinterpret_cast<S*>(dynamic_cast<const HostProgram&>(program).address(id));
}

template class RefBackend<float>;
template class RefBackend<double>;
template class RefBackend<std::complex<double>>;
template std::span<const Candidate> ref_candidates<float>();
template std::span<const Candidate> ref_candidates<double>();
template std::span<const Candidate> ref_candidates<std::complex<double>>();

std::unique_ptr<Backend> make_ref_backend(const BackendOptions&) {
  return std::make_unique<RefBackend<float>>();
}

}  // namespace wick
