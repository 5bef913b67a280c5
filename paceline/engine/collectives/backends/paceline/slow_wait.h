#pragma once

// Reports collectives that wait too long: a warning after 10 s, an error at the deadline. Both name
// the missing ranks, and count only the time in which this process was awake.
//
// A missing rank may itself be waiting for a third one. So unless all ranks share memory, a rank
// that is about to report missing ranks first asks all other ranks which ranks they wait for
// (Mesh::ask_peers, kAnswerLimit), and follows the answers until it reaches ranks that gave none.

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
  bool has_arrived = false;  // whether the rank has arrived at the operation
  int waiter = 0;            // the rank that waits for the suspect, perhaps this one
};
// Follows the chains of waiting ranks from this rank to their ends, by the peers' answers if
// `asked`. Returns the ranks at the ends that have not arrived or, if all have arrived, all ranks
// at the ends. Empty if all ranks answer that they are waiting.
std::vector<Suspect> find_suspects(const Mesh& mesh, std::span<const Awaited> awaited, bool asked);
// Returns a text such as "rank 3 (box), which rank 1 is waiting for, has not arrived".
std::string describe_suspects(const Mesh& mesh, std::span<const Suspect> suspects);
// Returns the text when there is no suspect, such as "rank 1 (box) is waiting as well".
std::string describe_waiting(const Mesh& mesh, std::span<const Awaited> awaited);
// The ranks of the suspects or, if there are none, the awaited ranks.
std::vector<int> blamed(std::span<const Awaited> awaited, std::span<const Suspect> suspects);

// The ranks that a rank waits for, and a sentence about them.
struct Missing {
  std::string text;
  std::vector<int> ranks;  // ranks in the group
};
// Makes Error(kTimeout) with rank, operation, sequence number, elapsed time, `missing` and the
// verdict of the flight records.
Error slow_wait_error(const Mesh& mesh, const Fingerprint& operation, const WaitOptions& wait,
                      AwakeClock::time_point begin, const Missing& missing);

// The steps already taken for a slow collective; each is taken once.
struct SlowWaitSteps {
  bool has_asked = false;
  bool has_warned = false;
};
// Logs a warning once the wait has lasted 10 s. If `asks`, asks the peers shortly before that.
void warn_of_slow_wait(Mesh& mesh, const Fingerprint& operation, AwakeClock::time_point begin,
                       bool asks, SlowWaitSteps& steps, const std::function<Missing()>& missing);

}  // namespace paceline
