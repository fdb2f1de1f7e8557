// SPDX-License-Identifier: Apache-2.0
// Which rows of w make a tile of matvec_mma.cuh, and what becomes of their sums.
//
// A tile has up to kItems items: rows of w, or, with kPairs, rows and their partners, of which
// put() gets both sums. A Spot is where an item lies; of its Early, weights() may be asked for
// before the kernel waits (for row m of x), feeds() after that, look_up() when feeds() have come.
#pragma once

#include "backend/cuda/matvec.cuh"

namespace wick::cuda {

template <int kRows_>
struct MatvecStore : Into {
  static constexpr bool kPairs = false;
  static constexpr int kRows = kRows_, kItems = kRows;
  using Spot = int;
  struct Early {
    float bias;
  };
  __device__ Spot spot(int item) const { return item; }
  __device__ int row(Spot s, bool) const { return s; }
  __device__ void weights(Early& e, Spot s, int) const { e.bias = bias[s]; }
  __device__ void feeds(Early&, int) const {}
  __device__ void look_up(Early&, Spot) const {}
  __device__ void put(int m, Spot s, float sum, float, const Early& e) const {
    Into::put(m, s, sum, e.bias);
  }
};

struct MatvecGated {
  static constexpr bool kPairs = true;
  static constexpr int kRows = 16, kItems = 8;
  Rows<Bf16> y;
  AnyFloats bias;
  int half;
  bool silu;
  using Spot = int;
  struct Early {
    float gate, up;
  };
  __device__ Spot spot(int item) const { return item; }
  __device__ int row(Spot s, bool partner) const { return s + (partner ? half : 0); }
  __device__ void weights(Early& e, Spot s, int) const { e = {bias[s], bias[half + s]}; }
  __device__ void feeds(Early&, int) const {}
  __device__ void look_up(Early&, Spot) const {}
  __device__ void put(int m, Spot s, float gate, float up, const Early& e) const {
    // Rounded as if they had been written in between.
    const float x = to_f32(from_f32<Bf16>(gate + e.gate)), u = to_f32(from_f32<Bf16>(up + e.up));
    const float inner = silu ? x : 1.5957691216f * x * fmaf(x * x, 0.044715f, 1.0f);
    y[m][s] = from_f32<Bf16>(x * __fdividef(1.0f, 1.0f + __expf(-inner)) * u);
  }
};

struct MatvecRotated {
  static constexpr bool kPairs = true;
  static constexpr int kRows = 16, kItems = 8;
  Rows<Bf16> q, cache_k, cache_v;
  Rows<const float> table;
  const int32_t *positions, *cache_rows;
  AnyFloats bias;
  int heads, kv_heads, half;  // half of a head
  bool ahead;                 // positions and cache_rows are there before the kernel's turn
  struct Spot {
    int head, low, angle;  // the pair's first column; its place in half a head
  };
  struct Early {
    float low, high, cosine, sine;
    int position, cache_row;
  };
  __device__ Spot spot(int item) const {
    const int head = static_cast<int>(static_cast<unsigned>(item) / static_cast<unsigned>(half));
    return {head, item + head * half, item - head * half};
  }
  __device__ int row(Spot s, bool partner) const { return s.low + (partner ? half : 0); }
  __device__ void weights(Early& e, Spot s, int m) const {
    e.low = bias[s.low];
    e.high = bias[s.low + half];
    if (!ahead) return;
    // From the second-level cache: the first one is cleared by the wait alone.
    e.position = __ldcg(positions + m);
    e.cache_row = __ldcg(cache_rows + m);
    take_angle(e, s);
  }
  __device__ void feeds(Early& e, int m) const {
    if (ahead) return;
    e.position = positions[m];
    e.cache_row = cache_rows[m];
  }
  __device__ void look_up(Early& e, Spot s) const {
    if (!ahead) take_angle(e, s);
  }
  __device__ void take_angle(Early& e, Spot s) const {
    const float* angle = table[e.position] + s.angle;
    const bool turns = s.head < heads + kv_heads;
    e.cosine = turns ? angle[0] : 1.0f;
    e.sine = turns ? angle[half] : 0.0f;
  }
  __device__ void put(int m, Spot s, float first, float second, const Early& e) const {
    const float u = to_f32(from_f32<Bf16>(first + e.low));
    const float v = to_f32(from_f32<Bf16>(second + e.high));
    Bf16* to = nullptr;
    if (s.head < heads)
      to = q[m] + s.low;
    else if (e.cache_row >= 0 && s.head < heads + kv_heads)
      to = cache_k[e.cache_row] + s.low - heads * 2 * half;
    else if (e.cache_row >= 0)
      to = cache_v[e.cache_row] + s.low - (heads + kv_heads) * 2 * half;
    if (to == nullptr) return;
    to[0] = from_f32<Bf16>(u * e.cosine - v * e.sine);
    to[half] = from_f32<Bf16>(v * e.cosine + u * e.sine);
  }
};

}  // namespace wick::cuda
