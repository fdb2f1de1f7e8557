// SPDX-License-Identifier: Apache-2.0
#include "app/generation_view.h"

#include "app/format.h"
#include "base/check.h"

namespace wick {

Json generation_json(const Generation& g) {
  return {{"text", g.text},
          {"tokens", g.tokens},
          {"prompt_tokens", g.prompt_tokens},
          {"generated_tokens", g.generated_tokens},
          {"prompt_tps", g.prompt_tps},
          {"generation_tps", g.generation_tps},
          {"first_token_ms", g.first_token_ms},
          {"finish_reason", g.finish_reason}};
}

std::string generation_statistics(const Generation& g) {
  std::string end = g.finish_reason == "stop"     ? "ended by a stop token or text"
                    : g.finish_reason == "length" ? "cut at the limit"
                                                  : "stopped by you";
  return cat(plural(g.prompt_tokens, "prompt token"), " at ", fixed(g.prompt_tps, 1), "/s; ",
             plural(g.generated_tokens, "new token"), " at ", fixed(g.generation_tps, 1),
             "/s; first after ", format_ms(g.first_token_ms), "; ", end);
}

}  // namespace wick
