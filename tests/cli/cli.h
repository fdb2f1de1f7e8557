// SPDX-License-Identifier: Apache-2.0
// The built binary, run from outside.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "io/json.h"

namespace wick::test {

struct CliResult {
  int code = -1;         // the exit code; 128 + n for signal n
  std::string out, err;  // what it wrote

  std::vector<Json> lines() const;  // of standard output, one JSON object each
  // The first object with that "event". Fails the test without one.
  Json event(const std::string& name) const;
};

// Runs wick with these arguments. `on_output`, if given, sees standard output so far and the
// process, each time more of it arrives.
using OnOutput = std::function<void(const std::string& out, int pid)>;
CliResult wick(const std::vector<std::string>& arguments, const std::string& input = {},
               const OnOutput& on_output = {});

// A folder of this test's own, removed at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(const std::string& name = {}) const;
  // Writes a file, making folders on the way, and returns its path.
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path folder_;
};

std::string contents(const std::string& path);

// A llama of two small layers with seeded weights, a byte-level tokenizer without merges (ids 0 to
// 255 are the bytes, then <s>, </s>, <|user|>, <|assistant|>, <|system|>) and a chat template.
// `context` is the number of positions.
void write_tiny_model(const std::string& folder, int64_t context = 256);

// train.jsonl, valid.jsonl and test.jsonl of short chats.
void write_tiny_data(const std::string& folder, int rows = 12);

}  // namespace wick::test
