// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/mlp.cuh"

namespace wick::cuda {

int64_t mlp_parts(int64_t columns) { return divide_up(columns, kMlpColumns * kMlpCluster); }

bool mlp(const Queue& queue, const Mlp& a, bool launches) {
  const Operand& x = a.in.a;
  if (queue.arch != Arch::kSm90 || x.rows < 1 || x.rows > kMlpRows || x.cols % 64 != 0 ||
      a.down.cols % kMlpColumns != 0 || mlp_parts(a.down.cols) > kMostParts ||
      a.gate_up.rows != 2 * a.down.cols || !has_codes(a.gate_up) ||
      a.gate_up.dtype != a.down.dtype || a.in.normed)
    return false;
  for (const Operand& o : {a.in.a, a.in.b, a.in.sum})
    if (o && (o.dtype != DType::kBF16 || !aligned16(o))) return false;
  if (reinterpret_cast<uintptr_t>(a.in.gain.data) % 16 != 0 ||
      x.cols > kStretchColumns * kMostStretches)
    return false;
  return quant_bits(a.gate_up.dtype) == 8 ? mlp_codes<8>(queue, a, launches)
                                          : mlp_codes<4>(queue, a, launches);
}

}  // namespace wick::cuda
