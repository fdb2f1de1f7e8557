// SPDX-License-Identifier: Apache-2.0
// Whether this process may use the matrix unit of newer Xeons (AMX, bf16 and int8 tiles).
#pragma once

#include <string>

namespace wick::cpu {

// Empty where a small product on the tiles gave the right numbers; otherwise why they are not used.
// The trial runs in a child process, so a machine that promises AMX and does not have it costs
// nothing. Asks the system once per process for the permission that AMX needs.
const std::string& amx_problem();

}  // namespace wick::cpu
