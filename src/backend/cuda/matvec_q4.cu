// SPDX-License-Identifier: Apache-2.0
// matvec_codes.cuh for codes of 4 bits.
#include "backend/cuda/matvec_codes.cuh"

namespace wick::cuda {

template <>
bool launch_codes<4>(const Queue& queue, const MatvecIn& in, const Operand& w,
                     const MatvecStore<8>& out) {
  return launch_codes_here<4>(queue, in, w, out);
}
template <>
bool launch_codes<4>(const Queue& queue, const MatvecIn& in, const Operand& w,
                     const MatvecStore<16>& out) {
  return launch_codes_here<4>(queue, in, w, out);
}
template <>
bool launch_codes<4>(const Queue& queue, const MatvecIn& in, const Operand& w,
                     const MatvecGated& out) {
  return launch_codes_here<4>(queue, in, w, out);
}
template <>
bool launch_codes<4>(const Queue& queue, const MatvecIn& in, const Operand& w,
                     const MatvecRotated& out) {
  return launch_codes_here<4>(queue, in, w, out);
}

}  // namespace wick::cuda
