// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a pack as far as its rows fill the program: attention by what is attended, the
// head by its targets, all else by the program's slots. Packs of one run take times in about this
// proportion, so that some of them tell the time of all.
#pragma once

#include "data/packing.h"
#include "plan/plan.h"

namespace wick {

// Rows that all of the pack's slots attend to together, each within the window (0: none).
double attended(const Pack& pack, int64_t window);

// Looks at the pack when it is asked: the pack must outlive it.
Filling pack_filling(const Pack& pack);

// Of a run of the plan over the pack.
double pack_work(const Plan& plan, const Pack& pack);

}  // namespace wick
