// SPDX-License-Identifier: Apache-2.0
// The flags of what is shared between rows and between adapters: kept rows, several adapters.
#include "app/train_flags.h"

namespace wick {

void add_sweep_flags(Args& args, TrainFlags& flags) {
  TrainOptions& o = flags.train;
  args.group("Sharing");
  args.text("--prefix-cache", o.prefix_cache, "WHERE",
            "Outputs of the frozen blocks below the adapters, kept for later epochs: auto, off, "
            "memory, or a folder.")
      .path();
  args.size("--prefix-cache-size", o.prefix_cache_bytes, "SIZE",
            "Most that is kept; rows beyond it are computed each time.")
      .shown("a quarter of the free memory");
}

}  // namespace wick
