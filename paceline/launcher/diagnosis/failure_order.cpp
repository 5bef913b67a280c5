#include "paceline/launcher/diagnosis/failure_order.h"

#include <algorithm>
#include <charconv>
#include <csignal>

namespace paceline::launcher {
namespace {

constexpr std::chrono::nanoseconds kDeathOfOne = std::chrono::seconds(1);

bool was_killed(const Failure& failure) { return failure.signal != 0 && failure.signal != SIGABRT; }

// Reads the rank in the world, 3, from words that begin with "3: ..." or with "1 (rank 3 of the
// world, box): ..." (engine/core/rank_name.h).
std::optional<AccusedRank> accused(std::string_view words, bool has_aborted) {
  constexpr std::string_view kInWorld = " (rank ";
  const auto end = std::min(words.find_first_not_of("0123456789"), words.size());
  if (words.substr(end).starts_with(kInWorld)) words.remove_prefix(end + kInWorld.size());
  int rank = -1;
  const auto result = std::from_chars(words.data(), words.data() + words.size(), rank);
  if (result.ec != std::errc()) return {};
  return AccusedRank{rank, has_aborted};
}

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

std::optional<AccusedRank> accused_rank(std::string_view words) {
  constexpr std::string_view kAdvice = "; see the output of rank ";  // of engine/transport/mesh.cpp
  constexpr std::string_view kAborted = " was aborted by rank ";
  if (const auto at = words.rfind(kAdvice); at != std::string_view::npos)
    return accused(words.substr(at + kAdvice.size()), false);
  const auto at = words.rfind(kAborted);
  if (at == std::string_view::npos) return {};
  words.remove_prefix(at + kAborted.size());
  // "1 (box): rank 2: why": rank 1 passed on what rank 2 said.
  constexpr std::string_view kSaid = "): rank ";
  const auto said = words.substr(0, words.find('\n')).find(kSaid);
  return accused(said == std::string_view::npos ? words : words.substr(said + kSaid.size()), true);
}

}  // namespace paceline::launcher
