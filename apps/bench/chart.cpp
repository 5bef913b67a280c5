#include "apps/bench/chart.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace paceline::bench {
namespace {

constexpr double kWidth = 860, kHeight = 430;
constexpr double kLeft = 84, kRight = 190, kTop = 40, kBottom = 62;
constexpr double kMarker = 4;
constexpr double kLegendLine = 22;
constexpr std::size_t kManyBinaryTicks = 11;

// Converts values to positions on the page.
class Axis {
 public:
  Axis(double low, double high, double from, double to)
      : low_(std::log(low)), high_(std::log(high)), from_(from), to_(to) {}
  double operator()(double value) const {
    return from_ + (std::log(value) - low_) / (high_ - low_) * (to_ - from_);
  }

 private:
  double low_, high_, from_, to_;
};

struct Range {
  double low = 0, high = 0;
  void include(double value) {
    low = low == 0 ? value : std::min(low, value);
    high = std::max(high, value);
  }
  // Adds some space at both ends; a narrow range is widened by a factor of two in both directions.
  Range widened(double factor) const {
    const bool narrow = high < low * 1.01;
    return narrow ? Range{low / 2, high * 2} : Range{low / factor, high * factor};
  }
};

std::string marker(const ChartStyle& style, double x, double y) {
  const double r = kMarker;
  const auto shape = [&](const std::string& points) {
    return fmt::format("<polygon points=\"{}\" fill=\"{}\"/>", points, style.color);
  };
  const auto cross = [&](const std::string& path) {
    return fmt::format("<path d=\"{}\" stroke=\"{}\" stroke-width=\"{}\" fill=\"none\"/>", path,
                       style.color, style.width);
  };
  switch (style.marker) {
    case 'o':
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"/>", x, y, r,
                         style.color);
    case 's':
      return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>",
                         x - r, y - r, 2 * r, 2 * r, style.color);
    case 't':
      return shape(fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}", x, y - 1.3 * r,
                               x - 1.2 * r, y + r, x + 1.2 * r, y + r));
    case 'd':
      return shape(fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}", x,
                               y - 1.4 * r, x + 1.4 * r, y, x, y + 1.4 * r, x - 1.4 * r, y));
    case '+':
      return cross(fmt::format("M{:.1f} {:.1f}h{:.1f}M{:.1f} {:.1f}v{:.1f}", x - 1.5 * r, y, 3 * r,
                               x, y - 1.5 * r, 3 * r));
    case 'x':
      return cross(fmt::format("M{0:.1f} {1:.1f}l{2:.1f} {2:.1f}M{0:.1f} {3:.1f}l{2:.1f} -{2:.1f}",
                               x - r, y - r, 2 * r, y + r));
    default:
      return "";
  }
}

std::string line(double x1, double y1, double x2, double y2, const std::string& attributes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, attributes);
}

std::string words(double x, double y, const std::string& attributes, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes,
                     escaped(text));
}

std::string stroke(const ChartStyle& style) {
  return fmt::format("stroke=\"{}\" stroke-width=\"{}\"{}", style.color, style.width,
                     style.dash.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", style.dash));
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart),
        x_range_(range_of(true)),
        y_range_(range_of(false)),
        x_(x_range_.low, x_range_.high, kLeft, kWidth - kRight),
        y_(y_range_.low, y_range_.high, kHeight - kBottom, kTop) {}

  std::string svg() {
    text_ = fmt::format(
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" "
        "font-family=\"system-ui, sans-serif\" font-size=\"13\">\n",
        kWidth, kHeight, escaped(chart_.title));
    text_ += words(kLeft, kTop - 16, "font-size=\"15\" font-weight=\"600\"", chart_.title);
    draw_axes();
    for (const ChartSeries& series : chart_.series) draw_curve(series);
    draw_legend();
    return text_ + "</svg>\n";
  }

 private:
  Range range_of(bool x) const {
    Range range;
    for (const ChartSeries& series : chart_.series) {
      for (const ChartPoint& point : series.points) {
        range.include(x ? point.x : point.low);
        range.include(x ? point.x : point.high);
      }
    }
    return range.widened(x ? 1.15 : 1.3);
  }

  void draw_axes() {
    for (const double tick : binary_ticks(x_range_.low, x_range_.high)) {
      text_ += line(x_(tick), kTop, x_(tick), kHeight - kBottom, "stroke=\"#e4e4e4\"");
      text_ += words(x_(tick), kHeight - kBottom + 20, "text-anchor=\"middle\" fill=\"#333\"",
                     chart_.x_text(tick));
    }
    for (const double tick : decimal_ticks(y_range_.low, y_range_.high)) {
      text_ += line(kLeft, y_(tick), kWidth - kRight, y_(tick), "stroke=\"#e4e4e4\"");
      text_ +=
          words(kLeft - 8, y_(tick) + 4, "text-anchor=\"end\" fill=\"#333\"", chart_.y_text(tick));
    }
    text_ += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#555\"/>\n",
        kLeft, kTop, kWidth - kLeft - kRight, kHeight - kTop - kBottom);
    text_ += words((kLeft + kWidth - kRight) / 2, kHeight - 16,
                   "text-anchor=\"middle\" fill=\"#333\"", chart_.x_label);
    const double middle = (kTop + kHeight - kBottom) / 2;
    text_ += words(0, 0,
                   fmt::format("text-anchor=\"middle\" fill=\"#333\" "
                               "transform=\"translate(18 {:.1f}) rotate(-90)\"",
                               middle),
                   chart_.y_label);
  }

  void draw_curve(const ChartSeries& series) {
    std::string places;
    for (const ChartPoint& point : series.points)
      places += fmt::format("{:.1f},{:.1f} ", x_(point.x), y_(point.y));
    text_ +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" {}/>\n", places, stroke(series.style));
    for (const ChartPoint& point : series.points) {
      if (point.high > point.low) {
        text_ += line(x_(point.x), y_(point.low), x_(point.x), y_(point.high),
                      fmt::format("stroke=\"{}\" stroke-opacity=\"0.5\"", series.style.color));
      }
      text_ += marker(series.style, x_(point.x), y_(point.y)) + "\n";
    }
  }

  void draw_legend() {
    const double x = kWidth - kRight + 16;
    double y = kTop + 10;
    for (const ChartSeries& series : chart_.series) {
      text_ += line(x, y, x + 28, y, stroke(series.style));
      text_ += marker(series.style, x + 14, y) + "\n";
      text_ += words(x + 36, y + 4, "fill=\"#111\"", series.label);
      y += kLegendLine;
    }
  }

  const Chart& chart_;
  Range x_range_, y_range_;
  Axis x_, y_;
  std::string text_;
};

}  // namespace

std::string to_svg(const Chart& chart) { return Drawing(chart).svg(); }

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::vector<double> decimal_ticks(double low, double high) {
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  std::vector<double> factors = {1};
  if (last - first <= 3) factors = {1, 2, 5};
  std::vector<double> ticks;
  for (int exponent = first; exponent <= last; ++exponent) {
    for (const double factor : factors) {
      const double tick = factor * std::pow(10, exponent);
      if (tick >= low && tick <= high) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::vector<double> binary_ticks(double low, double high) {
  const int first = static_cast<int>(std::ceil(std::log2(low)));
  const int last = static_cast<int>(std::floor(std::log2(high)));
  int step = 1;
  while (static_cast<std::size_t>((last - first) / step) >= kManyBinaryTicks) ++step;
  std::vector<double> ticks;
  for (int exponent = (first + step - 1) / step * step; exponent <= last; exponent += step)
    ticks.push_back(std::exp2(exponent));
  return ticks;
}

}  // namespace paceline::bench
