#pragma once

// Why a generation of a job failed: the first rank that ended badly, or a host that was lost. One
// value from the agent that saw it, through the coordinator, to the restart policy and the job's
// exit code.

#include <chrono>
#include <optional>
#include <string>

namespace paceline::launcher {

struct Failure {
  enum class Kind { kRank, kHost };

  Kind kind = Kind::kRank;
  std::string cause;        // "rank 1 on host a: exit code 3", "host b is lost: ..."
  std::string end;          // the same without its place, which may differ next time: "exit code 3"
  int exit_code = 0;        // that the job ends with, if it ends because of this
  int signal = 0;           // that killed the rank; 0: it exited by itself
  std::string reason;       // "out of memory"; empty: nothing that short is known
  bool on_purpose = false;  // by --chaos
  // By the monotonic clock of whoever reports; whoever takes the report brings it to its own clock,
  // where it may be off by `clock_error`, or drops it.
  std::optional<std::chrono::nanoseconds> at;
  std::chrono::nanoseconds clock_error{};  // not sent

  // The program has no part in it.
  bool blameless() const { return on_purpose || kind == Kind::kHost; }
  bool operator==(const Failure&) const = default;
};

}  // namespace paceline::launcher
