// SPDX-License-Identifier: Apache-2.0
// Any bytes as JSON and as JSON lines: a value or a wick::Error. What parses must survive a trip
// through its own text, and be what nlohmann's parser makes of it.
#include <cstdint>
#include <cstdlib>

#include "io/json.h"
#include "io/jsonl.h"
#include "wick/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    wick::Json value = wick::parse_json(text, "input");
    std::string written = wick::dump_json(value);
    if (wick::dump_json(wick::parse_json(written, "written")) != written) std::abort();
    if (text.find('\0') == text.npos && wick::Json::parse(text) != value) std::abort();
    wick::get_int(value, "a", "input", 0);
    wick::get_float(value, "b", "input", 0);
    wick::get_string(value, "c", "input", "");
  } catch (const wick::Error&) {
  }
  try {
    int64_t last = 0;
    wick::for_each_json_line(text, "input", [&](int64_t line, wick::Json&&) {
      if (line <= last) std::abort();
      last = line;
    });
  } catch (const wick::Error&) {
  }
  return 0;
}
