// SPDX-License-Identifier: Apache-2.0
// How fast this machine reads memory at the moment, for cases that are bound by it: a shared host
// has moods, and a share of its bandwidth means something only beside a probe of the same moment.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "base/threads.h"
#include "bench/context.h"

namespace wick {

class ReadProbe {
 public:
  // Reads the matrices that `plan` multiplies with, which lie in this process: no other memory is
  // needed, and what caches hold of them is the same.
  ReadProbe(const BenchContext& context, const Plan& plan);

  // Whether a run of the plan is bound by memory at all: these bytes do not stay in caches.
  bool is_useful() const { return bytes_ >= kUsefulBytes; }
  // GB/s of reading everything once, on as many threads as the device has, each in one stream or in
  // four: the way that was faster at the first call.
  double gb_per_second();

 private:
  using Loop = uint64_t (*)(const void*, size_t);
  double read(Loop loop);

  static constexpr size_t kUsefulBytes = size_t{128} << 20;
  ThreadPool pool_;
  std::vector<BufferPtr> buffers_;
  size_t bytes_ = 0;
  Loop loop_ = nullptr;
};

}  // namespace wick
