// SPDX-License-Identifier: Apache-2.0
#include "app/plot.h"

#include <algorithm>
#include <cmath>

#include "app/format.h"

namespace wick {

namespace {

constexpr const char* kLineColor = "\x1b[36m";
constexpr const char* kMarkColor = "\x1b[33m";

// A grid of dots, two by four in a character cell.
class Canvas {
 public:
  Canvas(int columns, int rows)
      : columns_(columns),
        rows_(rows),
        dots_(static_cast<size_t>(columns * rows), 0),
        marks_(dots_.size(), false) {}

  int width() const { return 2 * columns_; }
  int height() const { return 4 * rows_; }

  void dot(int x, int y) {
    // Bits of U+2800 + n, by row, for the left and the right column.
    static const uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    dots_[cell(x, y)] |= kBits[y % 4][x % 2];
  }
  void mark(int x, int y) { marks_[cell(x, y)] = true; }
  void line(int x0, int y0, int x1, int y1) {
    int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= steps; ++i) dot(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps);
  }

  std::string row(int r, const PlotStyle& style) const {
    std::string text, gap;
    const char* paint = nullptr;  // the color in use
    for (int c = 0; c < columns_; ++c) {
      size_t at = static_cast<size_t>(r * columns_ + c);
      if (!marks_[at] && dots_[at] == 0) {
        gap += ' ';
        continue;
      }
      text += gap;
      gap.clear();
      const char* wanted = marks_[at] ? kMarkColor : kLineColor;
      if (style.color && wanted != paint) text += paint = wanted;
      if (!style.utf8) {
        text += marks_[at] ? 'o' : '*';
      } else if (marks_[at]) {
        text += "●";
      } else {
        unsigned code = 0x2800u + dots_[at];
        text +=
            {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
             static_cast<char>(0x80 | (code & 0x3F))};
      }
    }
    return paint ? text + "\x1b[0m" : text;
  }

 private:
  size_t cell(int x, int y) const { return static_cast<size_t>(y / 4 * columns_ + x / 2); }
  int columns_, rows_;
  std::vector<uint8_t> dots_;
  std::vector<bool> marks_;
};

std::string padded(const std::string& text, size_t width) {
  return std::string(width - std::min(width, columns_of(text)), ' ') + text;
}

// Digits after the point that tell numbers `span` apart by about one part in a hundred.
int digits_for(double span) {
  return std::clamp(static_cast<int>(std::ceil(2 - std::log10(std::max(span, 1e-9)))), 0, 6);
}

}  // namespace

std::string plot_curves(const Curve& line, const Curve& marks, const std::string& x_name,
                        const PlotStyle& style) {
  double x_min = INFINITY, x_max = -INFINITY, y_min = INFINITY, y_max = -INFINITY;
  auto good = [](const std::pair<double, double>& p) {
    return std::isfinite(p.first) && std::isfinite(p.second);
  };
  for (const Curve* curve : {&line, &marks})
    for (const auto& p : curve->points) {
      if (!good(p)) continue;
      x_min = std::min(x_min, p.first), x_max = std::max(x_max, p.first);
      y_min = std::min(y_min, p.second), y_max = std::max(y_max, p.second);
    }
  if (x_min > x_max) return {};
  if (y_max - y_min < 1e-9) y_min -= 0.5, y_max += 0.5;
  if (x_max - x_min < 1e-9) x_max = x_min + 1;

  int digits = digits_for(y_max - y_min);
  size_t label = std::max(fixed(y_min, digits).size(), fixed(y_max, digits).size()) + 1;
  int columns = std::max(style.columns - static_cast<int>(label) - 2, 16);
  Canvas canvas(columns, style.rows);
  auto at = [&](const std::pair<double, double>& p) {
    return std::pair<int, int>(
        static_cast<int>(std::lround((p.first - x_min) / (x_max - x_min) * (canvas.width() - 1))),
        static_cast<int>(
            std::lround((y_max - p.second) / (y_max - y_min) * (canvas.height() - 1))));
  };
  std::pair<int, int> last{-1, -1};
  for (const auto& p : line.points) {
    if (!good(p)) continue;
    auto here = at(p);
    if (last.first < 0) last = here;
    canvas.line(last.first, last.second, here.first, here.second);
    last = here;
  }
  for (const auto& p : marks.points)
    if (good(p)) canvas.mark(at(p).first, at(p).second);

  std::string out;
  const char* upright = style.utf8 ? "┤" : "|";
  for (int r = 0; r < style.rows; ++r) {
    // A number on every third row, and on both ends.
    bool numbered = r == 0 || r == style.rows - 1 || (r % 3 == 0 && r < style.rows - 2);
    double y = y_max - (y_max - y_min) * r / (style.rows - 1);
    out += padded(numbered ? fixed(y, digits) : "", label) +
           (numbered     ? upright
            : style.utf8 ? "│"
                         : "|") +
           canvas.row(r, style) + "\n";
  }
  out += padded("", label) + (style.utf8 ? "└" : "+");
  for (int c = 0; c < columns; ++c) out += style.utf8 ? "─" : "-";
  std::string left = general(x_min, 6), middle = general(std::round((x_min + x_max) / 2), 6),
              right = general(x_max, 6) + " " + x_name;
  std::string axis = left;
  const size_t middle_end = static_cast<size_t>(columns / 2) + middle.size() / 2;
  // A number that touches the next would be read as one with it.
  if (left.size() + middle.size() < middle_end &&
      middle_end + right.size() < static_cast<size_t>(columns))
    axis += padded(middle, middle_end - left.size());
  axis += padded(right, static_cast<size_t>(columns) - std::min<size_t>(axis.size(), columns));
  out += "\n" + padded("", label + 1) + axis + "\n";

  std::string key;
  if (!line.points.empty()) key += std::string(style.utf8 ? "⠤⠤ " : "** ") + line.name;
  if (!marks.points.empty())
    key += std::string(key.empty() ? "" : "   ") + (style.utf8 ? "● " : "o ") + marks.name;
  return out + padded("", label + 1) + key + "\n";
}

std::string bar(double share, int columns, bool utf8) {
  int eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * columns * 8));
  if (share > 0 && eighths == 0) eighths = 1;
  if (!utf8) return std::string(static_cast<size_t>((eighths + 7) / 8), '#');
  static const char* const kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  return text + kParts[eighths % 8];
}

std::vector<Bucket> histogram(const std::vector<int64_t>& values, int buckets) {
  if (values.empty()) return {};
  auto [low, high] = std::minmax_element(values.begin(), values.end());
  int64_t span = *high - *low + 1;
  // 1, 2 or 5 times a power of ten: ranges that people can read.
  int64_t width = 1;
  for (int64_t power = 1; width * buckets < span; power *= 10)
    for (int64_t factor : {1, 2, 5})
      if (width * buckets < span) width = power * factor;
  int64_t first = *low / width * width;
  if ((*high - first) / width >= buckets) {
    // Rounding the start down cost one bucket.
    first = *low;
  }
  std::vector<Bucket> result(static_cast<size_t>((*high - first) / width + 1));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i].from = first + static_cast<int64_t>(i) * width;
    result[i].to = result[i].from + width - 1;
  }
  for (int64_t value : values) ++result[static_cast<size_t>((value - first) / width)].count;
  return result;
}

}  // namespace wick
