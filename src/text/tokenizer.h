// SPDX-License-Identifier: Apache-2.0
// The tokenizer is part of the public interface; this is its header for the layers inside.
#pragma once

#include "wick/tokenizer.h"
