// SPDX-License-Identifier: Apache-2.0
// A preload library that has MKL, inside PyTorch, take its best code on processors of other makers
// than Intel: it asks for the maker before it asks for the instructions. On Zen 5 its products in
// f32 are 2.2 times as fast with AVX-512 as with what it takes there by itself.
int mkl_serv_intel_cpu_true(void) { return 1; }
