#pragma once

// What is reported about a collective that waits too long: a warning after 10 s, an error at the
// deadline. Both name the ranks that are missing, and count the time in which this process was
// awake.
//
// A rank that others wait for may wait for a third. So before a rank names another it asks all
// others which ranks they wait for (Mesh::ask_peers), gives them kAnswerLimit, and follows the
// answers to ranks that gave none.

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

inline constexpr std::chrono::milliseconds kAnswerLimit{250};

struct Suspect {
  int rank = 0;
  bool has_come = false;  // to the operation
  int waiter = 0;         // that waits for it, perhaps this rank
};
// The ranks that block those that this rank waits for, as far as the answers tell; if some of them
// have not arrived, only these. Empty when all of them say that they wait.
std::vector<Suspect> find_suspects(const Mesh& mesh, std::span<const Awaited> awaited, bool asked);
// "rank 3 (box), which rank 1 is waiting for, has not arrived".
std::string describe_suspects(const Mesh& mesh, std::span<const Suspect> suspects);
// For when there is no suspect: "rank 1 (box) is waiting as well".
std::string describe_waiting(const Mesh& mesh, std::span<const Awaited> awaited);
// The suspects; the awaited ranks if there are none.
std::vector<int> blamed(std::span<const Awaited> awaited, std::span<const Suspect> suspects);

// The ranks that a rank waits for, and the sentence that says so.
struct Missing {
  std::string text;
  std::vector<int> ranks;  // numbers of the group
};
// Error(kTimeout) with rank, operation, sequence number, elapsed time, `missing` and the cause that
// the flight records show.
Error slow_wait_error(const Mesh& mesh, const Fingerprint& operation, const WaitOptions& wait,
                      AwakeClock::time_point begin, const Missing& missing);

// What was done about a collective's slowness: each once.
struct SlowWaitSteps {
  bool has_asked = false;
  bool has_warned = false;
};
// Logs a warning when the wait has lasted 10 s, having asked the peers shortly before if `asks`.
void warn_of_slow_wait(Mesh& mesh, const Fingerprint& operation, AwakeClock::time_point begin,
                       bool asks, SlowWaitSteps& steps, const std::function<Missing()>& missing);

}  // namespace paceline
