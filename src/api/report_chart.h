// SPDX-License-Identifier: Apache-2.0
// Line charts as inline SVG. Colours and fonts are the page's: elements carry class names only.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace wick::report {

struct ChartSeries {
  std::string name;                               // for the legend and the tips
  std::string css;                                // class of its line and marks
  std::vector<std::pair<double, double>> points;  // x ascending; what is not finite leaves a gap
  bool marks = false;                             // a mark on every point
};

struct ChartStyle {
  std::string title;   // what a screen reader says
  std::string x_name;  // under the axis
  std::string y_name;  // above the axis
  int width = 880, height = 360;
  bool small = false;      // fewer ticks, no legend
  bool from_zero = false;  // the y axis begins at 0
  bool may_log = false;    // a logarithmic y axis where the values span much
};

// "" where no point is finite.
std::string line_chart(const std::vector<ChartSeries>& series, const ChartStyle& style);

}  // namespace wick::report
