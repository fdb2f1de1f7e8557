// SPDX-License-Identifier: Apache-2.0
// Everything that is wrong with a data set, found in one go: what `wick data` says. A row that
// cannot be read is a finding here, not the end.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace wick {

// Checks the splits, train first. With `fix` it also writes a cleaned copy of each as
// <fix>/<split>.jsonl; the folder must be none of the sources. Files of these splits that it has
// are in the way, or are replaced where `overwrite` says so. `on_finding` gets every finding as it is
// found.
// Throws: kNotFound where no source has a split of these; kIo; kInvalidArgument for wrong options;
// kCancelled where `should_stop`, asked at every row, says so.
DataCheck check_data(std::span<const DataSource> sources, std::span<const std::string> splits,
                     const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                     const DataOptions& options, const std::string& fix,
                     const std::function<bool()>& should_stop, bool overwrite,
                     const std::function<void(const DatasetIssue&)>& on_finding);

}  // namespace wick
