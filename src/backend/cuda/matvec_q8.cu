// SPDX-License-Identifier: Apache-2.0
// matvec_codes.cuh for codes of 8 bits.
#include "backend/cuda/matvec_codes.cuh"

namespace wick::cuda {

template <>
bool launch_codes<8>(const Queue& queue, const MatvecIn& in, const Operand& w,
                     const MatvecStore<8>& out) {
  return launch_codes_here<8>(queue, in, w, out);
}
template <>
bool launch_codes<8>(const Queue& queue, const MatvecIn& in, const Operand& w,
                     const MatvecStore<16>& out) {
  return launch_codes_here<8>(queue, in, w, out);
}
template <>
bool launch_codes<8>(const Queue& queue, const MatvecIn& in, const Operand& w,
                     const MatvecGated& out) {
  return launch_codes_here<8>(queue, in, w, out);
}
template <>
bool launch_codes<8>(const Queue& queue, const MatvecIn& in, const Operand& w,
                     const MatvecRotated& out) {
  return launch_codes_here<8>(queue, in, w, out);
}

}  // namespace wick::cuda
