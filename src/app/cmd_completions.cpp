// SPDX-License-Identifier: Apache-2.0
#include "app/reference.h"
#include "app/verbs.h"

namespace wick {

std::function<int()> declare_completions(Args& args) {
  auto words = std::make_shared<std::vector<std::string>>();
  args.summary = "completions for shells, and the reference pages";
  args.details =
      "Prints bash or zsh completions, the man page or the Markdown reference, all made from the "
      "same tables as the help.";
  args.examples = {
      {"wick completions bash > /etc/bash_completion.d/wick", "for every user's bash"},
      {"wick completions zsh > ~/.zfunc/_wick", "for zsh, with ~/.zfunc in fpath"},
  };
  args.positional("SHELL", *words, "bash, zsh, man or markdown.");
  return [words] {
    const std::string what = words->size() == 1 ? words->front() : "";
    std::string text = what == "bash"       ? bash_completion()
                       : what == "zsh"      ? zsh_completion()
                       : what == "man"      ? man_page()
                       : what == "markdown" ? markdown_reference()
                                            : "";
    if (text.empty())
      throw UsageError("wanted one of bash, zsh, man, markdown; as in wick completions bash");
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kDone;
  };
}

}  // namespace wick
