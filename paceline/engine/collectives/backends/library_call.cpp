#include "paceline/engine/collectives/backends/library_call.h"

#include <algorithm>
#include <array>

namespace paceline {

std::chrono::milliseconds timeout_of(Deadline deadline) {
  using std::chrono::milliseconds;
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(deadline.remaining()));
}

// Without first letters, which may be capitals.
ErrorCode code_of_text(std::string_view text) {
  constexpr std::array kTimedOut = {"imed out", "imeout"};
  constexpr std::array kLost = {"losed by peer",    "reset by peer",     "roken pipe",
                                "onnection closed", "onnection refused", "air closure"};
  const auto says = [&](std::string_view part) { return text.find(part) != text.npos; };
  if (std::any_of(kTimedOut.begin(), kTimedOut.end(), says)) return ErrorCode::kTimeout;
  if (std::any_of(kLost.begin(), kLost.end(), says)) return ErrorCode::kPeerLost;
  return ErrorCode::kSystem;
}

}  // namespace paceline
