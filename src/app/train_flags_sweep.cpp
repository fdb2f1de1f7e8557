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
  args.repeat("--sweep", flags.sweep, "KEY=A,B",
              "Train an adapter for each combination at once: lr, rank, alpha, dropout, seed, "
              "weight_decay, warmup, targets (q_proj+v_proj,all-linear).")
      .takes_all();
  args.repeat("--sweep-data", flags.sweep_data, "PATH",
              "Train an adapter on each of these data sets at once.")
      .takes_all()
      .path();
}

}  // namespace wick
