// SPDX-License-Identifier: Apache-2.0
// Any bytes as a file of rows, of each kind: rows and bad records in the order of their lines, bad
// ones with bytes of the file, or a wick::Error.
#include <cstdint>
#include <cstdlib>
#include <functional>

#include "data/source.h"
#include "wick/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::less_equal<const char*> before;
  for (auto kind : {wick::RowFileKind::kJsonLines, wick::RowFileKind::kJsonArray,
                    wick::RowFileKind::kCsv, wick::RowFileKind::kTsv}) {
    int64_t last = 0;
    auto in_order = [&](int64_t line) {
      if (line < last || line < 1) std::abort();
      last = line;
    };
    wick::RowFunctions functions;
    functions.row = [&](int64_t line, wick::Json&&) { in_order(line); };
    functions.bad = [&](int64_t line, const std::string& what, std::string_view record) {
      in_order(line);
      if (what.empty()) std::abort();
      if (!record.empty() && (!before(text.data(), record.data()) ||
                              !before(record.data() + record.size(), text.data() + text.size())))
        std::abort();
    };
    try {
      wick::for_each_row(text, "input", kind, functions);
    } catch (const wick::Error&) {
    }
  }
  return 0;
}
