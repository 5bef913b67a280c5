#include "paceline/planning/schedules/trace.h"

#include <string_view>

#include "paceline/engine/core/check.h"

namespace paceline::pipeline {
namespace {

constexpr double kMicroseconds = 1e6;  // the format's unit

std::string_view meaning_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kInputGradient:
      return "input gradient";
    case ActionKind::kWeightGradient:
      return "weight gradient";
  }
  return "";
}

std::string name_of(int process, int thread, std::string_view what, std::string_view name) {
  return fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":"{}"}}}})"
                     ",\n",
                     process, thread, what, name);
}

std::string events(int process, std::string_view heading, const TimedPlan& timed) {
  if (timed.ranks.empty()) return {};
  std::string text = name_of(process, 0, "process_name", heading);
  for (std::size_t rank = 0; rank < timed.ranks.size(); ++rank) {
    const auto thread = static_cast<int>(rank);
    text += name_of(process, thread, "thread_name", fmt::format("rank {}", rank));
    for (const auto& [action, begin_s, end_s] : timed.ranks[rank]) {
      text += fmt::format(
          R"({{"ph":"X","pid":{},"tid":{},"name":"{}","cat":"{}","ts":{:.3f},"dur":{:.3f}}})"
          ",\n",
          process, thread, to_string(action), meaning_of(action.kind), begin_s * kMicroseconds,
          (end_s - begin_s) * kMicroseconds);
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
