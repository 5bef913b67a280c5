#pragma once

// What explain() says: a verdict, and the sentence for people.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

enum class Verdict : std::uint8_t {
  kNothing,       // nothing was recorded
  kFinished,      // all ranks finished the same operations
  kStraggler,     // they did, but one kept the others waiting
  kMismatch,      // ranks called different operations
  kDied,          // a process ended, and its record does not say why
  kNeverEntered,  // a rank did not arrive at what others wait in
  kStuck,         // all arrived, and it did not end
  kCrossed,       // groups that wait for each other
  kMessage,       // a send or receive without the other side
  kFailed,        // something else failed; the rank's own words follow
  kUndecided,     // records that would decide it are missing
};
// "never_entered": for machines.
std::string_view name_of(Verdict verdict);

struct Explanation {
  Verdict verdict = Verdict::kNothing;
  std::string sentence;
  std::vector<int> ranks;      // that it is about; empty when that is not known
  std::string group;           // where the job stands; empty when nowhere
  std::uint32_t sequence = 0;  // likewise
  double waited_seconds = 0;   // the longest wait there, as far as it is known
};

}  // namespace paceline
