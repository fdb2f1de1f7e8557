// SPDX-License-Identifier: Apache-2.0
#include "adapter/svd.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace wick {

namespace {

// Vectors of one length, one after the other.
struct Vectors {
  int64_t count, length;
  std::vector<double> data;
  Vectors(int64_t n, int64_t l) : count(n), length(l), data(static_cast<size_t>(n * l), 0.0) {}
  double* operator[](int64_t i) { return data.data() + i * length; }
  const double* operator[](int64_t i) const { return data.data() + i * length; }
};

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void rotate(double* a, double* b, int64_t n, double c, double s) {
  for (int64_t i = 0; i < n; ++i) {
    const double x = a[i], y = b[i];
    a[i] = c * x - s * y;
    b[i] = s * x + c * y;
  }
}

// Rotates pairs of vectors until all are orthogonal, and `turned` along with them: afterwards
// x = turnedᵀ * (what x was), and the lengths of x are the singular values.
void jacobi(Vectors& x, Vectors& turned) {
  constexpr int kSweeps = 60;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    bool done = true;
    for (int64_t p = 0; p < x.count; ++p)
      for (int64_t q = p + 1; q < x.count; ++q) {
        const double pp = dot(x[p], x[p], x.length), qq = dot(x[q], x[q], x.length);
        const double pq = dot(x[p], x[q], x.length);
        if (std::abs(pq) <= 1e-14 * std::sqrt(pp * qq)) continue;
        done = false;
        const double zeta = (qq - pp) / (2 * pq);
        const double t = (zeta >= 0 ? 1.0 : -1.0) / (std::abs(zeta) + std::hypot(1.0, zeta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        rotate(x[p], x[q], x.length, c, s);
        rotate(turned[p], turned[q], turned.length, c, s);
      }
    if (done) return;
  }
}

Vectors identity(int64_t n) {
  Vectors v(n, n);
  for (int64_t i = 0; i < n; ++i) v[i][i] = 1;
  return v;
}

std::vector<int64_t> by_length(const Vectors& x, std::vector<double>& lengths) {
  lengths.resize(static_cast<size_t>(x.count));
  std::vector<int64_t> order(static_cast<size_t>(x.count));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = 0; i < x.count; ++i)
    lengths[static_cast<size_t>(i)] = std::sqrt(dot(x[i], x[i], x.length));
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  return order;
}

// Of the matrix whose rows are x: left vectors [count], right ones [length].
struct Triples {
  std::vector<double> values;
  Vectors left, right;
};

Triples decompose(Vectors x, int64_t rank) {
  Vectors turned = identity(x.count);
  jacobi(x, turned);
  std::vector<double> lengths;
  const std::vector<int64_t> order = by_length(x, lengths);
  Triples t{{}, Vectors(rank, x.count), Vectors(rank, x.length)};
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t from = order[static_cast<size_t>(i)];
    const double length = lengths[static_cast<size_t>(from)];
    t.values.push_back(length);
    std::copy_n(turned[from], x.count, t.left[i]);
    for (int64_t k = 0; k < x.length; ++k) t.right[i][k] = length > 0 ? x[from][k] / length : 0.0;
  }
  return t;
}

// Gram and Schmidt, twice, so that rounding leaves nothing.
void make_orthonormal(Vectors& x) {
  for (int64_t i = 0; i < x.count; ++i) {
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t j = 0; j < i; ++j) {
        const double part = dot(x[i], x[j], x.length);
        for (int64_t k = 0; k < x.length; ++k) x[i][k] -= part * x[j][k];
      }
    const double length = std::sqrt(dot(x[i], x[i], x.length));
    for (int64_t k = 0; k < x.length; ++k) x[i][k] = length > 0 ? x[i][k] / length : 0.0;
  }
}

// y = x wᵀ, or x w: with f32 inside a stretch of w, since w itself is no better.
Vectors times(const Vectors& x, const float* w, int64_t rows, int64_t cols, bool transposed) {
  Vectors y(x.count, transposed ? rows : cols);
  const auto n = static_cast<size_t>(x.count);
  std::vector<float> turned(static_cast<size_t>(x.length) * n);  // [length, count]
  for (int64_t k = 0; k < x.length; ++k)
    for (int64_t i = 0; i < x.count; ++i)
      turned[static_cast<size_t>(k) * n + static_cast<size_t>(i)] = static_cast<float>(x[i][k]);
  if (transposed) {
    std::vector<float> sum(n);
    for (int64_t r = 0; r < rows; ++r) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int64_t c = 0; c < cols; ++c) {
        const float factor = w[r * cols + c], *from = turned.data() + static_cast<size_t>(c) * n;
        for (size_t i = 0; i < n; ++i) sum[i] += factor * from[i];
      }
      for (size_t i = 0; i < n; ++i) y[static_cast<int64_t>(i)][r] = sum[i];
    }
    return y;
  }
  std::vector<float> sums(static_cast<size_t>(cols) * n, 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = turned.data() + static_cast<size_t>(r) * n;
    for (int64_t c = 0; c < cols; ++c) {
      const float factor = w[r * cols + c];
      float* to = sums.data() + static_cast<size_t>(c) * n;
      for (size_t i = 0; i < n; ++i) to[i] += factor * from[i];
    }
  }
  for (int64_t c = 0; c < cols; ++c)
    for (size_t i = 0; i < n; ++i)
      y[static_cast<int64_t>(i)][c] = sums[static_cast<size_t>(c) * n + i];
  return y;
}

// Subspace iteration: x spans the right vectors better each time.
Triples iterate(const float* w, int64_t rows, int64_t cols, int64_t rank) {
  constexpr int kLeast = 8, kMost = 40;
  constexpr double kStill = 1e-6;
  const int64_t width = std::min({rank + std::max<int64_t>(8, rank / 2), rows, cols});
  Vectors x(width, cols);
  Rng rng(mix_key(0x7069737361ull, static_cast<uint64_t>(rows * 1000003 + cols)));
  for (double& v : x.data) v = rng.normal();
  make_orthonormal(x);
  std::vector<double> last;
  for (int i = 0;; ++i) {
    Vectors y = times(x, w, rows, cols, true);  // rows of (w xᵀ)ᵀ
    if (i >= kLeast) {
      // The rows of y are w's images of x: their singular vectors are those of w in this subspace.
      Triples t = decompose(y, rank);
      double moved = 0;
      for (int64_t k = 0; k < rank && !last.empty(); ++k)
        moved = std::max(moved,
                         std::abs(t.values[static_cast<size_t>(k)] - last[static_cast<size_t>(k)]));
      const bool still = !last.empty() && moved <= kStill * t.values[0];
      last = t.values;
      if (still || i == kMost) {
        Triples out{t.values, Vectors(rank, rows), Vectors(rank, cols)};
        out.left.data = t.right.data;
        for (int64_t k = 0; k < rank; ++k)
          for (int64_t j = 0; j < width; ++j)
            for (int64_t c = 0; c < cols; ++c) out.right[k][c] += t.left[k][j] * x[j][c];
        return out;
      }
    }
    make_orthonormal(y);
    x = times(y, w, rows, cols, false);
    make_orthonormal(x);
  }
}

}  // namespace

SingularVectors singular_vectors(const float* w, int64_t rows, int64_t cols, int64_t rank) {
  WICK_CHECK(rank >= 1 && rank <= std::min(rows, cols), "rank ", rank, " of [", rows, ", ", cols,
             "]");
  constexpr int64_t kSmall = 128;
  SingularVectors out;
  auto take = [&](const Vectors& u, const std::vector<double>& s, const Vectors& v) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < rank; ++k) out.u.push_back(static_cast<float>(u[k][r]));
    for (int64_t k = 0; k < rank; ++k) {
      out.s.push_back(static_cast<float>(s[static_cast<size_t>(k)]));
      for (int64_t c = 0; c < cols; ++c) out.v.push_back(static_cast<float>(v[k][c]));
    }
  };
  if (std::min(rows, cols) > kSmall) {
    const Triples t = iterate(w, rows, cols, rank);
    take(t.left, t.values, t.right);
    return out;
  }
  // The smaller side is rotated.
  const bool by_rows = rows <= cols;
  Vectors x(std::min(rows, cols), std::max(rows, cols));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) (by_rows ? x[r][c] : x[c][r]) = w[r * cols + c];
  const Triples t = decompose(std::move(x), rank);
  if (by_rows)
    take(t.left, t.values, t.right);
  else
    take(t.right, t.values, t.left);
  return out;
}

}  // namespace wick
