// SPDX-License-Identifier: Apache-2.0
// Empty: the library that owns the precompiled header needs a source.
