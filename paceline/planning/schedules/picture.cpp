#include "paceline/planning/schedules/picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "paceline/engine/core/check.h"
#include "paceline/planning/schedules/schedule_checks.h"

namespace paceline::pipeline {

namespace {

constexpr double kWidth = 1100, kLeft = 80, kRight = 30, kRow = 30, kGap = 6, kHeader = 54,
                 kAxis = 34;
// The colour of each kind; black text is readable on all of them.
constexpr std::array<std::string_view, 4> kColours = {"#9cc3f5", "#f6b26b", "#ffd966", "#a8d8a0"};
constexpr std::array<std::string_view, 4> kMeanings = {"forward", "backward", "input gradient",
                                                       "weight gradient"};

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '<') {
      result += "&lt;";
    } else if (c == '&') {
      result += "&amp;";
    } else {
      result += c;
    }
  }
  return result;
}

std::size_t colour_of(Action::Kind kind) { return static_cast<std::size_t>(kind); }

std::string box(const TimedAction& timed, double x, double width, double y) {
  const Action& action = timed.action;
  std::string text = fmt::format(
      "<g><title>{}: {:.4g} ms to {:.4g} ms</title><rect x=\"{:.2f}\" y=\"{:.1f}\" "
      "width=\"{:.2f}\" "
      "height=\"{:.1f}\" fill=\"{}\" stroke=\"#444\" stroke-width=\"0.5\"/>",
      to_string(action), 1e3 * timed.begin_s, 1e3 * timed.end_s, x, y, width, kRow - kGap,
      kColours[colour_of(action.kind)]);
  const std::string label = fmt::format("{}", action.micro_batch);
  if (width > 4.0 + 7.0 * static_cast<double>(label.size())) {
    text += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                        x + width / 2, y + 16, label);
  }
  return text + "</g>\n";
}

std::string rows(const TimedSchedule& timed, std::string_view heading, double scale, double top) {
  std::string text = fmt::format(
      "<text x=\"8\" y=\"{:.1f}\" font-weight=\"bold\">{}: {:.1f} ms, bubble {:.1f}%</text>\n",
      top + 12, heading, 1e3 * timed.seconds, 100 * timed.bubble_share());
  for (std::size_t rank = 0; rank < timed.ranks.size(); ++rank) {
    const double y = top + 20 + kRow * static_cast<double>(rank);
    text += fmt::format("<text x=\"8\" y=\"{:.1f}\">rank {}</text>\n", y + 16, rank);
    text += fmt::format(
        "<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"#eeeeee\"/>\n",
        kLeft, y, timed.seconds * scale, kRow - kGap);
    for (const TimedAction& action : timed.ranks[rank]) {
      text +=
          box(action, kLeft + action.begin_s * scale, (action.end_s - action.begin_s) * scale, y);
    }
  }
  return text;
}

// The legend: each kind of action that occurs in the planned or in the measured step.
std::string legend(const Picture& picture) {
  std::array<bool, 4> used = {};
  for (const TimedSchedule* const step : {&picture.planned, &picture.measured}) {
    for (const auto& rank : step->ranks) {
      for (const TimedAction& timed : rank) used[colour_of(timed.action.kind)] = true;
    }
  }
  std::string text;
  double x = kLeft;
  for (std::size_t kind = 0; kind < used.size(); ++kind) {
    if (!used[kind]) continue;
    text += fmt::format(
        "<rect x=\"{}\" y=\"30\" width=\"14\" height=\"14\" fill=\"{}\" stroke=\"#444\" "
        "stroke-width=\"0.5\"/><text x=\"{}\" y=\"42\">{}</text>\n",
        x, kColours[kind], x + 20, kMeanings[kind]);
    x += 140;
  }
  return text;
}

// The distance between neighbouring numbers on the axis, which ends at `most`: 1, 2 or 5 times a
// power of ten, chosen so that the axis has at most ten intervals.
double axis_interval(double most) {
  double step = std::pow(10.0, std::floor(std::log10(most)) - 1);
  for (int i = 0; most / step > 10; ++i) step *= i % 3 == 1 ? 2.5 : 2;
  return step;
}

// The axis of milliseconds, with a vertical line at each number.
std::string axis(double seconds, double scale, double top, double bottom) {
  std::string text;
  const double most = 1e3 * seconds, step = axis_interval(most);
  for (int i = 0; i * step <= most * (1 + 1e-9); ++i) {
    const double x = kLeft + i * step / 1e3 * scale;
    text += fmt::format(
        "<line x1=\"{0:.2f}\" y1=\"{1:.1f}\" x2=\"{0:.2f}\" y2=\"{2:.1f}\" stroke=\"#bbb\"/>"
        "<text x=\"{0:.2f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4:g}</text>\n",
        x, top, bottom + 6, bottom + 20, i * step);
  }
  return text + fmt::format("<text x=\"8\" y=\"{:.1f}\">ms</text>\n", bottom + 20);
}

double height_of(const TimedSchedule& timed) {
  return timed.ranks.empty() ? 0 : 34 + kRow * static_cast<double>(timed.ranks.size());
}

}  // namespace

std::string to_svg(const Picture& picture) {
  const double seconds = std::max(picture.planned.seconds, picture.measured.seconds);
  check(!picture.planned.ranks.empty() && seconds > 0,
        "a picture of a pipeline needs a step that takes time");
  const double measured_top = kHeader + height_of(picture.planned);
  const double bottom = measured_top + height_of(picture.measured), height = bottom + kAxis;
  const double scale = (kWidth - kLeft - kRight) / seconds;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n<text x=\"8\" y=\"20\" font-size=\"15\">{}</text>\n",
      kWidth, height, kWidth, height, escaped(picture.title));
  text += legend(picture);
  text += axis(seconds, scale, kHeader + 20, bottom);
  text += rows(picture.planned, "planned", scale, kHeader);
  if (!picture.measured.ranks.empty())
    text += rows(picture.measured, "measured", scale, measured_top);
  return text + "</svg>\n";
}

namespace {

constexpr double kMicroseconds = 1e6;  // the format's unit

std::string name_of(int process, int thread, std::string_view what, std::string_view name) {
  return fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":"{}"}}}})"
                     ",\n",
                     process, thread, what, name);
}

std::string events(int process, std::string_view heading, const TimedSchedule& timed) {
  if (timed.ranks.empty()) return {};
  std::string text = name_of(process, 0, "process_name", heading);
  for (std::size_t rank = 0; rank < timed.ranks.size(); ++rank) {
    const auto thread = static_cast<int>(rank);
    text += name_of(process, thread, "thread_name", fmt::format("rank {}", rank));
    for (const auto& [action, begin_s, end_s] : timed.ranks[rank]) {
      text += fmt::format(
          R"({{"ph":"X","pid":{},"tid":{},"name":"{}","cat":"{}","ts":{:.3f},"dur":{:.3f}}})"
          ",\n",
          process, thread, to_string(action), kMeanings[colour_of(action.kind)],
          begin_s * kMicroseconds, (end_s - begin_s) * kMicroseconds);
    }
  }
  return text;
}

}  // namespace

std::string to_trace(const Picture& picture) {
  check(!picture.planned.ranks.empty(), "a trace of a pipeline needs a step");
  std::string text =
      events(1, "planned", picture.planned) + events(2, "measured", picture.measured);
  text.resize(text.size() - 2);  // the last comma
  return "{\"traceEvents\":[\n" + text + "\n]}\n";
}

}  // namespace paceline::pipeline
