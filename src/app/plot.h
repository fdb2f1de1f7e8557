// SPDX-License-Identifier: Apache-2.0
// Pictures made of characters.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace wick {

struct Curve {
  std::vector<std::pair<double, double>> points;  // x ascending
  std::string name;
};

struct PlotStyle {
  int columns = 72, rows = 12;  // of the whole picture; of the drawing area
  bool color = false;
  bool utf8 = true;  // braille dots and box lines; else ASCII
};

// `line` is drawn as a line, `marks` as single marks on top (either may be empty), with axes and
// their numbers, ending in a line that says which is which. Points that are not finite are left
// out; without any, the result is "".
std::string plot_curves(const Curve& line, const Curve& marks, const std::string& x_name,
                        const PlotStyle& style);

// A horizontal bar of `share` (0 to 1) of `columns`, in eighths where `utf8`.
std::string bar(double share, int columns, bool utf8);

struct Bucket {
  int64_t from = 0, to = 0, count = 0;  // from ≤ value ≤ to
};
// At most `buckets` ranges of equal, round width over the values.
std::vector<Bucket> histogram(const std::vector<int64_t>& values, int buckets);

}  // namespace wick
