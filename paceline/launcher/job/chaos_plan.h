#pragma once

// Faults on purpose, at seeded moments: what `paceline run --chaos` does to the ranks. A list of
//
//   KIND[:rank=N][:rate=1/S | :every=S][:for=S][@S | @stepN]     several with commas between
//
//   kill   SIGKILL
//   stop   frozen for `for` seconds (5), then set going again
//   slow   frozen half of the time, in slices of 20 ms, for `for` seconds (the rest of the job)
//
// "kill:rate=1/15s": on average every 15 s, a random rank; "every": exactly so; "stop:rank=1@30s":
// once, so long after the start; "kill:rank=1@step50": once, as soon as this rank has made so many
// training steps since its last start. Without a moment: once, at the start. Times are from 1 ms to
// 1e7 s, and faults at most one a millisecond. A rank that is not in the world is spared. The same
// seed and
// world give the same moments and ranks on every machine, so that the agents of a job act as one,
// each on its own ranks; a moment by steps, which each knows of its own ranks alone, needs a rank.
//
// Pure; time comes in as seconds since the job's first start.

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace paceline::launcher {

enum class FaultKind { kKill, kStop, kSlow };

struct Fault {
  FaultKind kind = FaultKind::kKill;
  std::optional<int> rank;               // nothing: a random one each time
  double mean_seconds = 0;               // above 0: again and again, at random
  double every_seconds = 0;              // above 0: again and again
  double at_seconds = 0;                 // once, without the two above
  double for_seconds = 0;                // 0: to the end
  std::optional<std::uint64_t> at_step;  // once, instead of at_seconds
  bool operator==(const Fault&) const = default;
};

// Error(kInvalid) names the part that makes no sense, and what would.
std::vector<Fault> parse_faults(const std::string& text);

class ChaosPlan {
 public:
  static constexpr double kNever = 1e300;
  static constexpr double kSlice = 0.02;

  // To do to a rank now.
  struct Action {
    int rank = 0;
    int signal = 0;
    std::string fault;  // "kill", when one begins; empty for what follows from it
  };

  ChaosPlan(const std::vector<Fault>& faults, std::uint64_t seed);

  // Training steps of a rank since its last start, as far as they are known here.
  using StepsOf = std::function<std::uint64_t(int rank)>;
  // What has become due by `seconds`. Requires: called with growing times.
  std::vector<Action> due(double seconds, int world_size, const StepsOf& steps);
  // When due() has to be called next; kNever when nothing is left but what waits for steps.
  double next_moment() const;
  bool waits_for_steps() const;

 private:
  struct Pending {
    Fault fault;
    double moment = 0;
    bool done = false;
    bool is_due(double seconds, const StepsOf& steps) const;
  };
  struct Running {  // a stop or a slow that has begun
    int rank = 0;
    double end = 0;
    double next = 0;
    bool slow = false, frozen = false;
  };

  double uniform();
  void plan_next(Pending& pending);
  Action begin(const Fault& fault, int rank, double seconds);
  void go_on(double seconds, std::vector<Action>& actions);

  std::vector<Pending> pending_;
  std::vector<Running> running_;
  std::mt19937_64 random_;
};

}  // namespace paceline::launcher
