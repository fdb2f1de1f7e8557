// SPDX-License-Identifier: Apache-2.0
// A described card: CUDA's runtime and cuBLASLt of words only, for tests of everything that the
// CUDA back end decides. Memory is addresses that nobody may read, a launch is looked at and not
// run, and time is a millisecond between any two events. Objects come before the libraries, whose
// own are then not linked.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace wick::card {

struct Card {
  std::string name;
  int major = 9, minor = 0;
  int multiprocessors = 0;
  size_t shared = 0;  // bytes that a block may ask for
  size_t memory = 0;  // bytes
  bool fast_products = true;
  bool present = true;  // else the driver has no card to show
  int driver = 0;       // the version of CUDA that it knows; 0: the runtime's own
};
std::vector<Card> cards();

// Back ends that are opened from now on have this card, with all its memory free.
void use(const Card& card);

// What a card would have refused, or read wrongly, since it was last asked.
std::vector<std::string> take_complaints();

}  // namespace wick::card
