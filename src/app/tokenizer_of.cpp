// SPDX-License-Identifier: Apache-2.0
#include "app/tokenizer_of.h"

#include <filesystem>

namespace wick {

std::shared_ptr<const Tokenizer> tokenizer_of(const std::string& model) {
  std::error_code none;
  if (!model.empty() && std::filesystem::is_directory(model, none))
    return std::make_shared<const Tokenizer>(Tokenizer::load(model));
  struct Owner {
    Engine engine{EngineOptions{.device = "cpu", .threads = 1}};
    Model model;
    explicit Owner(const std::string& name) : model(Model::load(engine, {.model = name})) {}
  };
  auto owner = std::make_shared<Owner>(model);
  return {owner, &owner->model.tokenizer()};
}

}  // namespace wick
