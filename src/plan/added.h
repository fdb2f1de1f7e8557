// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/plan.h"

namespace wick {

// Whether a step adds a product with a short sum to what `product`, a linear, makes: an adapter's
// y += scale * h Bᵀ, of all of y or of some rows and columns.
bool adds_to(const Plan& plan, const Step& step, const Step& product);

// One past the last step of those right behind a linear that add to it, or make what is added from
// its input alone (an adapter's h, a dropout before it); product + 1 where there are none. A device
// may make all of the latter first, and the former in the product.
size_t added_end(const Plan& plan, size_t product);

}  // namespace wick
