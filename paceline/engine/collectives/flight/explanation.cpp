#include "paceline/engine/collectives/flight/explanation.h"

namespace paceline {

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNothing:
      return "nothing";
    case Verdict::kFinished:
      return "finished";
    case Verdict::kStraggler:
      return "straggler";
    case Verdict::kMismatch:
      return "mismatch";
    case Verdict::kDied:
      return "died";
    case Verdict::kNeverEntered:
      return "never_entered";
    case Verdict::kStuck:
      return "stuck";
    case Verdict::kCrossed:
      return "crossed";
    case Verdict::kMessage:
      return "message";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kUndecided:
      return "undecided";
  }
  return "unknown";
}

}  // namespace paceline
