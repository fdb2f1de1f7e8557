// SPDX-License-Identifier: Apache-2.0
// The first product of head and its softmax in one: logits leave the registers as exponentials.
//
// They are of z - most, `most` being the row's maximum over words that were seen before. It need
// not be that of these words too: bf16 has f32's exponents, so only where it is passed by 79 and
// more is an exponential cut (at 2^115), and the row's probabilities no longer true.
#pragma once

#include "backend/cuda/queue.h"

namespace wick::cuda {

constexpr int kHeadExpWords = 256;  // of a tile
constexpr int kHeadExpParts = 96;   // tiles in a row of the most words

struct HeadExp {
  Operand x, w;     // [M, D], [words, D] bf16
  Operand factors;  // [M, words] bf16: the exponentials, 0 for a row's target
  int64_t first_word;
  const int32_t* targets;  // of these rows, as all below
  const float* most;
  float* others;  // += the sum over words but the target
  float* chosen;  // the target's logit, where it is among these words
  float* parts;   // scratch [M, kHeadExpParts]
};

// Whether the card and these operands are as it wants them: x in blocks of rows of which the last
// has `rows`.
bool head_exponentials_serve(const Queue& queue, const Operand& x, const Operand& w, int64_t rows);
// Of m rows and v words in blocks of `block_rows`, the first of `words` words: the words of those
// behind it. A row of logits in f32 has room for twice as many exponentials, so few rows take so
// many that the last of the card's rounds of tiles are full too; no block is larger than the first.
int64_t head_exp_words(int64_t m, int64_t v, int64_t block_rows, int64_t words, int sms);
// False, having done nothing, where it does not serve.
bool head_exponentials(const Queue& queue, const HeadExp& h);

}  // namespace wick::cuda
