#include "paceline/diagnosis/failure_order.h"

#include <charconv>
#include <csignal>

namespace paceline::launch {
namespace {

constexpr std::chrono::nanoseconds kDeathOfOne = std::chrono::seconds(1);

bool was_killed(const Failure& failure) { return failure.signal != 0 && failure.signal != SIGABRT; }

}  // namespace

bool failed_before(const Failure& later, const Failure& earlier) {
  const bool alike = was_killed(later) == was_killed(earlier);
  const bool timed = later.at && earlier.at;
  if (timed) {
    const auto ahead = *earlier.at - *later.at;
    const auto doubt = later.clock_error + earlier.clock_error +
                       (alike ? std::chrono::nanoseconds(0) : kDeathOfOne);
    if (std::chrono::abs(ahead) > doubt) return ahead > std::chrono::nanoseconds(0);
  }
  if (!alike) return was_killed(later);
  return timed && *later.at < *earlier.at;
}

std::optional<int> rank_called_gone(std::string_view words) {
  constexpr std::string_view kAdvice = "; see the output of rank ";  // of transport/mesh.cpp
  const auto at = words.rfind(kAdvice);
  if (at == std::string_view::npos) return {};
  const char* begin = words.data() + at + kAdvice.size();
  int rank = -1;
  const auto [end, error] = std::from_chars(begin, words.data() + words.size(), rank);
  return error == std::errc() ? std::optional(rank) : std::nullopt;
}

}  // namespace paceline::launch
