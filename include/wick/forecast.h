// SPDX-License-Identifier: Apache-2.0
// Forecast: what a run will take, known before a weight is read.
#pragma once

#include <cstdint>
#include <string>

namespace wick {

struct Forecast {
  // Bytes by kind; peak_bytes is their sum.
  int64_t weights = 0, params = 0, gradients = 0, moments = 0, feeds = 0, arena = 0;
  int64_t peak_bytes = 0;
  // Parts of the arena when it is fullest; their sum is arena.
  int64_t activations = 0, head = 0, workspace = 0;
  // Of this process besides: code, tokenizer, data, copies while a checkpoint is written; not in
  // peak_bytes.
  int64_t process_bytes = 0;
  int64_t tokens_per_step = 0;   // T of a micro-batch
  int64_t targets_per_step = 0;  // M
  bool recompute = false;
  int64_t recompute_blocks = 0, blocks = 0;  // recomputed in the backward pass, of those trained
  // What --memory changed, in words: "recompute in 12 of 24 blocks"; "" where nothing.
  std::string choice = {};
  int64_t free_bytes = 0;     // peak_bytes without --memory
  double time_factor = 1;     // of an update, against the run without --memory
  int64_t prefix_blocks = 0;  // below the first trained one, whose rows are kept; 0: none are
  int64_t prefix_bytes = 0;   // of all rows; in peak_bytes where they are kept in memory
  bool prefix_on_disk = false;
  double prefix_ms = 0;  // of computing one update's rows, in the first epoch
  double gflop = 0;      // of one micro-batch, forward and backward
  // Times are measured: by trying the step itself, or on a part of the model whose rates are
  // carried to the whole; 0 if the device cannot be timed.
  bool tried = false;                        // the step itself
  double step_ms = 0;                        // of one update
  double step_ms_low = 0, step_ms_high = 0;  // between which it moved while it was tried
  double prepare_ms = 0;                     // before the first: what a loss asks of its reference
  double eval_ms = 0;    // of one look at the held-out rows
  double answer_ms = 0;  // of it, answers to the prompts
  double save_ms = 0;   // of one checkpoint with its result; the disk's speed is tried, or assumed
  double cold_ms = 0;   // once: memory that is touched the first time, held-out rows that are kept
  int64_t updates = 0;  // of the whole run
  double total_seconds = 0;  // the reference, updates, looks at the held-out rows, checkpoints
  double total_seconds_low = 0, total_seconds_high = 0;  // as of step_ms
  bool assumed_rows = false;  // there was no data: every row is taken to be full and trained
  int64_t disk_bytes = 0;     // of what is saved at the end
  // When it is most: while a file is written beside the one that it replaces.
  int64_t disk_peak_bytes = 0;
  // Tokens per token slot of the first epoch: as it is run, had each batch been padded to its
  // longest row, and the same with the rows sorted by length (which changes what is learned).
  double packed_fill = 0, padded_fill = 0, sorted_fill = 0;
};

}  // namespace wick
