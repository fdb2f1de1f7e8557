// SPDX-License-Identifier: Apache-2.0
// The files of models/tiny, put into the binary by api/embedded.S.
#include "api/internal.h"

#ifdef WICK_HAS_EMBEDDED_MODEL
extern "C" {
#define WICK_FILE(symbol)                          \
  extern const std::byte wick_embedded_##symbol[]; \
  extern const std::byte wick_embedded_##symbol##_end[];
#include "api/embedded_files.h"
#undef WICK_FILE
}
#endif

namespace wick {

std::vector<EmbeddedFile> embedded_model_files() {
  std::vector<EmbeddedFile> files;
#ifdef WICK_HAS_EMBEDDED_MODEL
  auto add = [&](const char* name, const std::byte* begin, const std::byte* end) {
    files.push_back({name, {begin, static_cast<size_t>(end - begin)}});
  };
  add("config.json", wick_embedded_config, wick_embedded_config_end);
  add("generation_config.json", wick_embedded_generation_config,
      wick_embedded_generation_config_end);
  add("tokenizer.json", wick_embedded_tokenizer, wick_embedded_tokenizer_end);
  add("tokenizer_config.json", wick_embedded_tokenizer_config, wick_embedded_tokenizer_config_end);
  add("model.safetensors", wick_embedded_model, wick_embedded_model_end);
#endif
  return files;
}

}  // namespace wick
