// SPDX-License-Identifier: Apache-2.0
// What the system says about this process and machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wick {

int64_t peak_memory_bytes();     // resident, since the start or the last reset
void reset_peak_memory();        // from now on, where the system lets it; otherwise nothing
int64_t current_memory_bytes();  // resident, now; 0 where the system does not say
// Of a range of memory, what the system has not given yet: pages that nobody has written. 0 where
// it does not say.
int64_t untouched_bytes(const void* begin, size_t bytes);
// Gives what was freed and is still held for later allocations back to the system, where it can.
void release_free_memory();
// For main(), before a thread allocates: all threads share one heap, and large blocks go back to
// the system when they are freed. Of heaps of their own, what is freed at the end stays with a
// thread that sleeps, and cannot be given back.
void share_one_heap();
int64_t available_memory_bytes();  // that a new allocation may take; 0 where it does not say
// What other processes took of all processors since this was made, as a share; 0 where the system
// does not say.
class OthersShare {
 public:
  OthersShare();
  double since() const;

 private:
  double busy_, all_, own_;
};

int64_t free_disk_bytes(const char* path);  // for an ordinary user; -1 where it does not say

}  // namespace wick
