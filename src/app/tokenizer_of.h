// SPDX-License-Identifier: Apache-2.0
// The tokenizer of --model, for verbs that need nothing else of it.
#pragma once

#include <memory>
#include <string>

#include "wick/wick.h"

namespace wick {

// Of a folder only the tokenizer's files are looked at, so that it need not have weights or a
// config. Other names, and none, are those of Model::load. Throws: as that and Tokenizer::load.
std::shared_ptr<const Tokenizer> tokenizer_of(const std::string& model);

}  // namespace wick
