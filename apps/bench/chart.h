#pragma once

// Curves over logarithmic axes as one SVG element, without script or font of its own.
//
// Thread safety: pure functions.

#include <functional>
#include <string>
#include <vector>

namespace paceline::bench {

struct ChartPoint {
  double x = 0, y = 0;       // positive
  double low = 0, high = 0;  // of the bar through the point; equal to y: none
};

// How a curve looks; the same contestant looks the same in every chart.
struct ChartStyle {
  std::string color;  // as CSS writes it
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
  std::function<std::string(double)> x_text, y_text;  // of a tick
  std::vector<ChartSeries> series;
};

// Requires: at least one point.
std::string to_svg(const Chart& chart);

// Text that may stand in HTML and SVG.
std::string escaped(const std::string& text);

// The decades of `low` to `high`, with 2 and 5 between them when there are few.
std::vector<double> decimal_ticks(double low, double high);
// Powers of two; only every second or third one if there are many.
std::vector<double> binary_ticks(double low, double high);

}  // namespace paceline::bench
