// SPDX-License-Identifier: Apache-2.0
// ops_runner check|grad|support|bench [--op NAME] [--device NAME] [--part small|large]
//            [--share I/N] [--cases FOLDER] [--against FILE]
// A device is "ref", "cpu", "cpu/avx2" or "cuda/sm_80"; without one, all of them. Runs the case
// files beside this source, or those of FOLDER: those that take no time, the others, or without
// --part all; of those every Nth from the Ith on. Fails where an op has no case file. With a FILE
// support compares instead of printing.
#include <cstdio>
#include <cstring>

#include "backend/backend.h"
#include "base/check.h"
#include "base/file.h"
#include "ops/modes.h"

namespace wick::ops {
namespace {

struct Share {
  size_t first = 1, of = 1;
};

int run(const std::string& mode, const std::string& only_op, const std::string& only_device,
        Part part, Share share, const std::string& folder, const std::string& page) {
  std::vector<Device> devices = find_devices(only_device);
  std::vector<Case> cases;
  bool found = false;
  for (int i = 0; i < kOpCount; ++i) {
    Op op = static_cast<Op>(i);
    if (!only_op.empty() && only_op != op_name(op)) continue;
    std::vector<Case> loaded = load_cases(folder, op, part);
    found = true;
    cases.insert(cases.end(), loaded.begin(), loaded.end());
  }
  if (!found) fail(ErrorCode::kInvalidArgument, "no op is called ", only_op);
  std::vector<Case> shared;
  for (size_t i = share.first - 1; i < cases.size(); i += share.of)
    shared.push_back(std::move(cases[i]));
  cases = std::move(shared);
  if (mode == "check") return check_cases(cases, devices);
  if (mode == "grad") return check_gradients(cases);
  if (mode == "support" && !page.empty()) return check_support(read_file(page), cases, devices);
  if (mode == "support") return std::printf("%s", support_page(cases, devices).c_str()), 0;
  if (mode == "bench") return bench_cases(cases, devices), 0;
  fail(ErrorCode::kInvalidArgument, "unknown mode ", mode, "; use check, grad, support or bench");
}

Part parse_part(const std::string& name) {
  if (name.empty()) return Part::kAll;
  if (name == "small") return Part::kSmall;
  if (name == "large") return Part::kLarge;
  fail(ErrorCode::kInvalidArgument, "unknown part ", name, "; use small or large");
}

Share parse_share(const std::string& text) {
  Share share;
  if (text.empty()) return share;
  if (std::sscanf(text.c_str(), "%zu/%zu", &share.first, &share.of) != 2 || share.first < 1 ||
      share.first > share.of)
    fail(ErrorCode::kInvalidArgument, "unknown share ", text, "; use one such as 1/3");
  return share;
}

}  // namespace
}  // namespace wick::ops

int main(int argc, char** argv) {
  try {
    std::string mode = argc > 1 ? argv[1] : "check", op, device, part, share, page;
    std::string cases = WICK_SOURCE_DIR "/tests/ops";
    for (int i = 2; i + 1 < argc; i += 2) {
      if (std::strcmp(argv[i], "--op") == 0) op = argv[i + 1];
      if (std::strcmp(argv[i], "--device") == 0) device = argv[i + 1];
      if (std::strcmp(argv[i], "--part") == 0) part = argv[i + 1];
      if (std::strcmp(argv[i], "--share") == 0) share = argv[i + 1];
      if (std::strcmp(argv[i], "--cases") == 0) cases = argv[i + 1];
      if (std::strcmp(argv[i], "--against") == 0) page = argv[i + 1];
    }
    const int failures = wick::ops::run(mode, op, device, wick::ops::parse_part(part),
                                        wick::ops::parse_share(share), cases, page);
    return failures == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ops_runner: %s\n", e.what());
    return 1;
  }
}
