// SPDX-License-Identifier: Apache-2.0
#include "app/verbs.h"

namespace wick {

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> kVerbs = {
      {"train", declare_train},
      {"generate", declare_generate},
      {"chat", declare_chat},
      {"eval", declare_eval},
      {"merge", declare_merge},
      {"convert", declare_convert},
      {"data", declare_data},
      {"plan", declare_plan},
      {"bench", declare_bench},
      {"tokenize", declare_tokenize},
      {"template", declare_template},
      {"devices", declare_devices},
      {"completions", declare_completions, true},
  };
  return kVerbs;
}

std::vector<std::unique_ptr<Args>> all_args() {
  std::vector<std::unique_ptr<Args>> tables;
  for (const Verb& verb : verbs()) {
    if (verb.hidden) continue;
    tables.push_back(std::make_unique<Args>(verb.name));
    verb.declare(*tables.back());
  }
  return tables;
}

}  // namespace wick
