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

// How far the first `rank` of b lie outside the span of the first `rank` of a. Both orthonormal.
double outside(const Vectors& a, const Vectors& b, int64_t rank) {
  double most = 0;
  for (int64_t i = 0; i < rank; ++i) {
    double inside = 0;
    for (int64_t j = 0; j < rank; ++j) {
      const double part = dot(b[i], a[j], a.length);
      inside += part * part;
    }
    most = std::max(most, 1 - inside);
  }
  return std::sqrt(std::max(0.0, most));
}

// Subspace iteration with Chebyshev's polynomial of wᵀw, which keeps small what lies below the
// subspace's least value: the spectrum of a trained matrix is so flat that powers alone would take
// hundreds of products. The vectors have to stand still, since values do long before them.
Triples iterate(const float* w, int64_t rows, int64_t cols, int64_t rank) {
  constexpr int kMost = 40, kMostDegree = 8;
  constexpr double kStill = 2e-6;
  // The polynomial may lift the largest value so far above the least wanted one: f32 holds both.
  constexpr double kMostLift = 1e3;
  const int64_t width = std::min({rank + std::max<int64_t>(8, rank / 2), rows, cols});
  Vectors x(width, cols);
  Rng rng(mix_key(0x7069737361ull, static_cast<uint64_t>(rows * 1000003 + cols)));
  for (double& v : x.data) v = rng.normal();
  make_orthonormal(x);
  for (int i = 0;; ++i) {
    // The rows of y are w's images of x: their singular vectors are those of w in this subspace.
    const Vectors y = times(x, w, rows, cols, true);  // rows of (w xᵀ)ᵀ
    Triples t = decompose(y, width);
    Vectors right(width, cols);
    for (int64_t k = 0; k < width; ++k)
      for (int64_t j = 0; j < width; ++j)
        for (int64_t c = 0; c < cols; ++c) right[k][c] += t.left[k][j] * x[j][c];
    const bool still = i > 0 && outside(x, right, rank) <= kStill;
    x = std::move(right);
    // Of a matrix of low rank it is rounding, or nothing.
    const double least =
        std::max(t.values.back() * t.values.back(), 1e-12 * t.values.front() * t.values.front());
    if (still || i == kMost || least <= 0) {
      Triples out{
          {t.values.begin(), t.values.begin() + rank}, Vectors(rank, rows), Vectors(rank, cols)};
      std::copy_n(t.right.data.begin(), out.left.data.size(), out.left.data.begin());
      std::copy_n(x.data.begin(), out.right.data.size(), out.right.data.begin());
      return out;
    }
    // z_0 = x, z_1 = m x, z_{j+1} = 2 m z_j - z_{j-1} with m = 2 wᵀw / least - 1.
    auto growth = [&](double value) {
      const double at = 2 * value * value / least - 1;
      return at + std::sqrt(std::max(0.0, at * at - 1));
    };
    const double lift =
        std::log(growth(t.values.front()) / growth(t.values[static_cast<size_t>(rank - 1)]));
    const int degrees = lift * kMostDegree <= std::log(kMostLift)
                            ? kMostDegree
                            : std::max(1, static_cast<int>(std::log(kMostLift) / lift));
    Vectors before = x, now = x;
    for (int degree = 1; degree <= degrees; ++degree) {
      const Vectors image = times(times(now, w, rows, cols, true), w, rows, cols, false);
      Vectors next(width, cols);
      const double factor = degree == 1 ? 1 : 2;
      for (size_t k = 0; k < next.data.size(); ++k)
        next.data[k] =
            factor * (2 / least * image.data[k] - now.data[k]) - (degree == 1 ? 0 : before.data[k]);
      before = std::move(now);
      now = std::move(next);
    }
    make_orthonormal(now);
    x = std::move(now);
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
