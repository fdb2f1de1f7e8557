// SPDX-License-Identifier: Apache-2.0
// PackWork: the arithmetic of a pack as far as its rows fill the program: attention by what is
// attended, the head by its targets, all else by the program's slots. Packs of one run take times
// in about this proportion, so that some of them tell the time of all.
#pragma once

#include <map>

#include "data/packing.h"
#include "plan/plan.h"

namespace wick {

class PackWork {
 public:
  // Of a run of the plan over the pack. Remembers plans by their address: they must outlive this.
  double of(const Plan& plan, const Pack& pack);

 private:
  struct Parts {
    double attention = 0;  // for each row that a slot attends to
    double head = 0;       // for each target
    double rest = 0;
  };
  std::map<const Plan*, Parts> parts_;
};

}  // namespace wick
