// SPDX-License-Identifier: Apache-2.0
// The list of embedded files, for whoever defines WICK_FILE(symbol). Included more than once.
WICK_FILE(config)
WICK_FILE(generation_config)
WICK_FILE(tokenizer)
WICK_FILE(tokenizer_config)
WICK_FILE(model)
