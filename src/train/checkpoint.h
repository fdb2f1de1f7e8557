// SPDX-License-Identifier: Apache-2.0
// The state of a run that a resume needs, in one file that is replaced atomically: a crash or a
// full disk leaves the one before whole. A checksum over everything in it is looked at before a
// number is believed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "io/json.h"

namespace wick {

// Numbers that an optimizer keeps, by the name it has for them.
struct CheckpointState {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::byte> bytes;
};

struct Checkpoint {
  int64_t step = 0;  // updates done
  std::vector<float> params;
  std::vector<float> best;  // the parameters of the best held-out loss; empty where none are kept
  std::vector<CheckpointState> states;
  Json run;       // what must be the same on resume: options, data, model
  Json progress;  // history, best loss, tokens so far, what early stopping has seen
};

std::filesystem::path checkpoint_path(const std::filesystem::path& folder);
// Also removes what a killed run left half written beside it.
void save_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint);
// None if the folder has no checkpoint. Throws: kCorruptFile.
std::optional<Checkpoint> load_checkpoint(const std::filesystem::path& folder);
// Its `run` alone, without reading the numbers.
std::optional<Json> load_checkpoint_run(const std::filesystem::path& folder);

// Every member whose value differs, as "name: was …, is now …". A member that the older one does
// not have, because it was written by an older wick, is no difference; nor is another name of a
// model or data set with the same numbers. kOrder is not looked at.
std::vector<std::string> differences(const Json& was, const Json& now);

// The member that says how a build of wick computes a run whose options and data are the same:
// numerics, and keys of the plan's steps, of their kernels, of the packs and of what is trained.
constexpr const char* kOrder = "order";
// To be raised with every change of a kernel or of a random number that changes bits without
// changing the plan, a kernel's name or the packs.
constexpr int64_t kNumerics = 12;
// What of it differs, a sentence each.
std::vector<std::string> order_differences(const Json& was, const Json& now);
// Whether the parameters of both are the same modules', as far as the older one says.
bool trains_the_same(const Json& was, const Json& now);

}  // namespace wick
