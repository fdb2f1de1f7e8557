// SPDX-License-Identifier: Apache-2.0
// The library never prints: what a person may want to read goes to this callback.
#pragma once

#include <functional>
#include <string>

namespace wick {

enum class LogLevel { kInfo, kWarning };
using LogSink = std::function<void(LogLevel, const std::string&)>;

}  // namespace wick
