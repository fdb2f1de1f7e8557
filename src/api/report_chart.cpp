// SPDX-License-Identifier: Apache-2.0
#include "api/report_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "api/report_text.h"
#include "base/check.h"

namespace wick::report {

namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr size_t kMaxPoints = 600;  // of a line; more cannot be told apart
constexpr size_t kMaxTips = 250;
constexpr double kLogSpan = 20;  // largest over smallest value
constexpr double kLargest = 1e30;

bool drawable(double y) { return std::isfinite(y) && std::abs(y) < kLargest; }

// Long lines keep the lowest and the highest point of every stretch, so that spikes stay.
Points thinned(const Points& points) {
  if (points.size() <= kMaxPoints) return points;
  Points finite, out;
  for (const auto& p : points)
    if (drawable(p.second)) finite.push_back(p);
  const size_t stretches = kMaxPoints / 2;
  for (size_t i = 0; i < stretches; ++i) {
    auto first = finite.begin() + static_cast<ptrdiff_t>(i * finite.size() / stretches);
    auto last = finite.begin() + static_cast<ptrdiff_t>((i + 1) * finite.size() / stretches);
    if (first == last) continue;
    auto by_y = [](const auto& a, const auto& b) { return a.second < b.second; };
    auto [low, high] = std::minmax_element(first, last, by_y);
    out.push_back(low < high ? *low : *high);
    if (low != high) out.push_back(low < high ? *high : *low);
  }
  return out;
}

struct Axis {
  double low = 0, high = 1;
  bool log = false;
  std::vector<double> ticks;
  int decimals = 0;  // of tick labels; < 0: as short as possible

  double share(double v) const {  // 0 at low, 1 at high
    return log ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
  }
  std::string label(double v) const { return decimals < 0 ? number(v, 3) : fixed(v, decimals); }
};

// 1, 2 or 5 times a power of ten.
double round_step(double least) {
  double power = std::pow(10.0, std::floor(std::log10(least)));
  for (double m : {1.0, 2.0, 5.0})
    if (least <= m * power * (1 + 1e-9)) return m * power;
  return 10 * power;
}

Axis linear_axis(double low, double high, int ticks, bool whole_numbers) {
  Axis a;
  double step = round_step((high - low) / ticks);
  if (whole_numbers) step = std::max(step, 1.0);
  a.low = low;
  a.high = high;
  int exponent = static_cast<int>(std::floor(std::log10(step) + 1e-9));
  a.decimals = std::max(0, -exponent);
  // Long rows of digits are written 5e-5.
  if (a.decimals > 4 || high >= 1e6) a.decimals = -1;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k)
    a.ticks.push_back(k * step + 0.0);  // no negative zero
  return a;
}

Axis log_axis(double low, double high) {
  Axis a;
  a.log = true;
  a.low = low / 1.15;
  a.high = high * 1.15;
  a.decimals = -1;
  const double decades = std::log10(a.high / a.low);
  for (int e = static_cast<int>(std::floor(std::log10(a.low))); std::pow(10.0, e) <= a.high; ++e)
    for (double m : {1.0, 2.0, 5.0}) {
      if (m != 1.0 && decades > 3) continue;
      if (double v = m * std::pow(10.0, e); v >= a.low && v <= a.high) a.ticks.push_back(v);
    }
  return a;
}

Axis value_axis(double low, double high, const ChartStyle& style) {
  if (style.may_log && low > 0 && high / low >= kLogSpan) return log_axis(low, high);
  double pad = (high - low) * 0.06;
  if (pad <= 0) pad = high != 0 ? std::abs(high) * 0.1 : 1;
  bool zero = style.from_zero || (low >= 0 && low < 0.4 * high);
  return linear_axis(zero ? std::min(low, 0.0) : low - pad, high + pad, style.small ? 3 : 5, false);
}

class Drawing {
 public:
  Drawing(const ChartStyle& style, Axis x, Axis y)
      : style_(style),
        x_(std::move(x)),
        y_(std::move(y)),
        left_(style.small ? 52 : 58),
        top_(style.small ? 30 : 34),
        right_(style.width - 14),
        bottom_(style.height - (style.small ? 40 : 44)) {}

  std::string axes() const {
    std::string out =
        text("axis-name", 4, 14, "start", escaped(style_.y_name + (y_.log ? " (log scale)" : "")));
    for (double v : y_.ticks) {
      double y = at_y(v);
      out += cat("<path class=\"grid\" d=\"M", px(left_), " ", px(y), "H", px(right_), "\"/>");
      out += text("tick", left_ - 8, y + 4, "end", y_.label(v));
    }
    for (double v : x_.ticks) {
      double x = at_x(v);
      out += cat("<path class=\"axis\" d=\"M", px(x), " ", px(bottom_), "v4\"/>");
      out += text("tick", x, bottom_ + 18, "middle", x_.label(v));
    }
    out += cat("<path class=\"axis\" d=\"M", px(left_), " ", px(bottom_), "H", px(right_), "\"/>");
    out += text("axis-name", (left_ + right_) / 2, bottom_ + 35, "middle", escaped(style_.x_name));
    return out;
  }

  std::string legend(const std::vector<ChartSeries>& series) const {
    std::string out;
    double x = right_;
    for (auto s = series.rbegin(); s != series.rend(); ++s) {
      // Wide enough for the page's font; characters are about 7 units.
      x -= 7.0 * static_cast<double>(s->name.size());
      out += text("legend", x, 14, "start", escaped(s->name));
      if (s->marks)
        out += circle(s->css + " mark", x - 12, 10, 3.5, "");
      else
        out += cat("<path class=\"line ", s->css, "\" d=\"M", px(x - 22), " 10h16\"/>");
      x -= 38;
    }
    return out;
  }

  std::string curve(const ChartSeries& s) const {
    Points points = thinned(s.points);
    std::string path, marks;
    bool tips = points.size() <= kMaxTips;
    for (size_t i = 0; i < points.size(); ++i) {
      if (!drawable(points[i].second)) continue;
      bool begins = i == 0 || !drawable(points[i - 1].second);
      bool ends = i + 1 == points.size() || !drawable(points[i + 1].second);
      double x = at_x(points[i].first), y = at_y(points[i].second);
      path += cat(begins ? "M" : "L", px(x), " ", px(y));
      std::string tip;
      if (tips)
        tip = escaped(cat(s.name, ": ", number(points[i].second), " at ",
                          count(std::llround(points[i].first))));
      // A point without neighbours would leave no line.
      if (s.marks || (begins && ends))
        marks += circle(s.css + " mark", x, y, style_.small ? 2.5 : 3.5, tip);
      else if (tips)
        marks += circle("tip", x, y, 7, tip);
    }
    return cat("<path class=\"line ", s.css, "\" d=\"", path, "\"/>", marks);
  }

 private:
  double at_x(double v) const { return left_ + x_.share(v) * (right_ - left_); }
  double at_y(double v) const { return bottom_ - y_.share(v) * (bottom_ - top_); }

  static std::string px(double v) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", v);
    return text;
  }
  static std::string text(const char* css, double x, double y, const char* anchor,
                          const std::string& what) {
    return cat("<text class=\"", css, "\" x=\"", px(x), "\" y=\"", px(y), "\" text-anchor=\"",
               anchor, "\">", what, "</text>");
  }
  static std::string circle(const std::string& css, double x, double y, double r,
                            const std::string& tip) {
    std::string open =
        cat("<circle class=\"", css, "\" cx=\"", px(x), "\" cy=\"", px(y), "\" r=\"", px(r), "\"");
    return tip.empty() ? open + "/>" : cat(open, "><title>", tip, "</title></circle>");
  }

  const ChartStyle& style_;
  Axis x_, y_;
  double left_, top_, right_, bottom_;
};

}  // namespace

std::string line_chart(const std::vector<ChartSeries>& series, const ChartStyle& style) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double x_low = kInfinity, x_high = -kInfinity, y_low = kInfinity, y_high = -kInfinity;
  std::vector<ChartSeries> shown;
  for (const ChartSeries& s : series) {
    bool any = false;
    for (auto [x, y] : s.points) {
      if (!drawable(y)) continue;
      any = true;
      x_low = std::min(x_low, x), x_high = std::max(x_high, x);
      y_low = std::min(y_low, y), y_high = std::max(y_high, y);
    }
    if (any) shown.push_back(s);
  }
  if (shown.empty()) return "";
  if (x_low > 0 && x_low < 0.2 * x_high) x_low = 0;
  if (x_low == x_high) x_low -= 1, x_high += 1;

  Drawing drawing(style, linear_axis(x_low, x_high, style.small ? 4 : 8, true),
                  value_axis(y_low, y_high, style));
  std::string out = cat("<svg class=\"chart\" viewBox=\"0 0 ", style.width, " ", style.height,
                        "\" role=\"img\" aria-label=\"", escaped(style.title),
                        "\" xmlns=\"http://www.w3.org/2000/svg\">", drawing.axes());
  for (const ChartSeries& s : shown) out += drawing.curve(s);
  if (!style.small) out += drawing.legend(shown);
  return out + "</svg>\n";
}

}  // namespace wick::report
