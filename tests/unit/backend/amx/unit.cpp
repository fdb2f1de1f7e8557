// SPDX-License-Identifier: Apache-2.0
// The back end's unit on tiles in memory, which works wherever its vectors do.
#define amx_problem problem_of_the_processor
#include "../../../../src/backend/cpu/amx.cpp"
#undef amx_problem

namespace wick::cpu {

const std::string& amx_problem() {
  static const std::string problem =
      avx512_bf16_works() ? "" : "the processor has no AVX-512 BF16 to make tiles of";
  return problem;
}

}  // namespace wick::cpu
