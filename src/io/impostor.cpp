// SPDX-License-Identifier: Apache-2.0
#include "io/impostor.h"

namespace wick {

std::string_view impostor_hint(std::string_view text) {
  if (text.starts_with("version https://git-lfs"))
    return "this is a Git LFS pointer, not the file itself: run `git lfs pull` in its folder";
  for (std::string_view page : {"<!DOCTYPE", "<!doctype", "<html", "<HTML", "<?xml"})
    if (text.starts_with(page))
      return "this is a web page, not the file itself: download it again (a gated model asks for "
             "a login)";
  return "";
}

}  // namespace wick
