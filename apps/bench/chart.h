#pragma once

// Draws curves over logarithmic axes as one SVG element, without scripts or embedded fonts.
//
// Thread safety: pure functions.

#include <functional>
#include <string>
#include <vector>

namespace paceline::bench {

struct ChartPoint {
  double x = 0, y = 0;       // positive
  double low = 0, high = 0;  // ends of the error bar; both equal to y: no bar
};

// The style of a curve; a contestant has the same style in every chart.
struct ChartStyle {
  std::string color;  // a CSS colour
  std::string dash;   // "" for a solid line, else an SVG dash array
  char marker = 'o';  // o circle, s square, t triangle, d diamond, + and x crosses
  double width = 2;
};

struct ChartSeries {
  std::string label;
  ChartStyle style;
  std::vector<ChartPoint> points;  // ascending in x
};

struct Chart {
  std::string title, x_label, y_label;
  std::function<std::string(double)> x_text, y_text;  // the label of a tick
  std::vector<ChartSeries> series;
};

// Requires: at least one point.
std::string to_svg(const Chart& chart);

// Returns `text` in which all characters that have a meaning in HTML and SVG are escaped.
std::string escaped(const std::string& text);

// The powers of ten from `low` to `high`, and their multiples by 2 and 5 if there are few.
std::vector<double> decimal_ticks(double low, double high);
// The powers of two from `low` to `high`; only every second, every third, ... if there are many.
std::vector<double> binary_ticks(double low, double high);

}  // namespace paceline::bench
