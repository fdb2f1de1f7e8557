// SPDX-License-Identifier: Apache-2.0
// Small files that stand where a downloaded one should be, told by how they begin.
#pragma once

#include <string_view>

namespace wick {

// "this is …, not the file itself: what to do", or "" for a text that is neither a Git LFS pointer
// nor a web page.
std::string_view impostor_hint(std::string_view text);

}  // namespace wick
