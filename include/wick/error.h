// SPDX-License-Identifier: Apache-2.0
// The one exception type of wick. Thrown while loading, planning, compiling and reading options or
// requests; never while a program runs. The library never prints, aborts or exits.
#pragma once

#include <stdexcept>
#include <string>

namespace wick {

enum class ErrorCode {
  kInvalidArgument,  // a wrong option, shape or request; the caller can correct it
  kNotFound,         // a file, tensor, column or name that is not there
  kUnsupported,      // a thing that wick knows of and does not do
  kCorruptFile,      // a file that contradicts its own format
  kIo,               // the system refused: permissions, disk full, a read that failed
  kOutOfMemory,      // the plan does not fit
  kDevice,           // the device failed or went away
  kCancelled,        // the caller asked to stop
  kInternal,         // our own mistake
};

const char* error_code_name(ErrorCode code);

// A message says where, what, got, wanted, and what to do, in one line.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace wick
