// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/fused.h"
#include "backend/cuda/fused_reverse.cuh"
#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

constexpr int64_t kFewRows = 128;  // fewer are other kernels'
// Of the depth; beyond, the library's kernels gain more than launches and passes over dx cost.
constexpr int64_t kMostDepth = 2560;

int64_t tiles_of(const ReverseProduct& p) {
  return divide_up(p.dy.rows, kFusedRows) * divide_up(p.dx.cols, kReverseCols);
}

bool start(const Queue& queue, const ReverseProduct& p) {
  using R = ReverseShape;
  using S = R::Base;
  FusedArgs a{.rows = static_cast<int>(p.dy.rows),
              .cols = static_cast<int>(p.dx.cols),
              .depth = static_cast<int>(p.dy.cols),
              .half = 0,
              .a_rows = static_cast<int>(8 * divide_up(p.a.rows, 8)),
              .splits = 1,
              .sharers = 1,
              .act = Act::kSilu,
              .y = rows<Bf16>(p.dx),
              .made = {},
              .h = rows<Bf16>(p.dh),
              .bias = nullptr};
  FusedMaps maps;
  if (!make_map(p.dy, kFusedDepth, kFusedRows, maps.left) ||
      !make_map(p.w, 64, kFusedDepth, maps.right) || !make_map(p.a, 32, a.a_rows, maps.small))
    return false;
  for (const FusedAdapter& adapter : p.adapters) {
    Operand flat = adapter.b;
    flat.rows = flat.elements() / 32;
    flat.cols = flat.ld = 32;
    if (!make_map(flat, 32, static_cast<int>(kFusedDepth * adapter.b.cols / 32), maps.b[a.parts]))
      return false;
    a.part[a.parts++] = {.first = static_cast<int>(adapter.first),
                         .cols = static_cast<int>(adapter.b.rows),
                         .first_rank = static_cast<int>(adapter.first_rank),
                         .ranks = static_cast<int>(adapter.b.cols),
                         .scale = adapter.scale};
  }
  const int other = S::kOther + std::max(S::kTileBytes, a.parts * 2 * R::kPutAside);
  a.stages = std::min((S::kMostShared - other) / R::kStageBytes, 8);
  const auto bytes = static_cast<size_t>(a.stages * R::kStageBytes + other);
  if (!allow_shared(reverse_kernel, bytes)) return false;
  prefer_shared(reverse_kernel);
  flush(queue);
  launch(queue, reverse_kernel, static_cast<unsigned>(tiles_of(p)), S::kThreads, bytes, maps, a);
  return true;
}

bool fits(const Operand& o, DType dtype) {
  return o.dtype == dtype && aligned16(o) && o.rows < (1 << 30) && o.cols < (1 << 30);
}

}  // namespace

bool reverse_product(const Queue& queue, const ReverseProduct& p) {
  if (queue.arch != Arch::kSm90 || p.adapters.empty() || p.adapters.size() > FusedArgs::kMost ||
      p.dy.rows < kFewRows || !fits(p.dy, DType::kBF16) || !fits(p.w, DType::kBF16) ||
      !fits(p.dx, DType::kBF16) || !fits(p.a, DType::kF32) || p.dh.dtype != DType::kBF16)
    return false;
  for (const FusedAdapter& a : p.adapters) {
    const bool whole = a.first % kFusedDepth == 0 && a.b.rows % kFusedDepth == 0;
    const bool in_eights = a.first_rank % 8 == 0 && (p.adapters.size() == 1 || a.b.cols % 8 == 0);
    if (!fits(a.b, DType::kF32) || a.b.ld != a.b.cols || 32 % a.b.cols != 0 ||
        a.b.cols > kReverseRanks || !whole || !in_eights)
      return false;
  }
  return tiles_of(p) <= queue.sms && p.dy.cols <= kMostDepth && start(queue, p);
}

}  // namespace wick::cuda
