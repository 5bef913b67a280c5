#pragma once

// Faults on purpose, at seeded moments, as `paceline run --chaos` does them to ranks. A list of
// faults with commas between, each of them
//
//   KIND[:rank=N][:rate=1/S | :every=S][:for=S][@S | @stepN]
//
//   kill   SIGKILL
//   stop   freezes the rank for `for` seconds (5), then lets it go on
//   slow   freezes it half of the time, in slices of 20 ms, for `for` seconds (the rest of the job)
//
//   kill:rate=1/15s     a random rank, on average every 15 s
//   kill:every=15s      a random rank, exactly every 15 s
//   stop:rank=1@30s     once, 30 s after the start; without a moment: once, at the start
//   kill:rank=1@step50  once, as soon as this rank has made 50 steps since its last start
//
// Times are from 1 ms to 1e7 s, and faults at most one a millisecond. A fault of a rank that is not
// in the world does nothing. The same seed and world give the same moments and ranks on every
// machine, so that the agents of a job act as one, each on its own ranks. A moment by steps needs a
// rank, because each agent knows only the steps of its own ranks.
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

// Error(kInvalid) names the wrong part and shows the right form.
std::vector<Fault> parse_faults(const std::string& text);

class ChaosPlan {
 public:
  static constexpr double kNever = 1e300;
  static constexpr double kSlice = 0.02;

  // A signal to send to a rank now.
  struct Action {
    int rank = 0;
    int signal = 0;
    std::string fault;  // "kill", for the first signal of a fault; empty for later ones
  };

  ChaosPlan(const std::vector<Fault>& faults, std::uint64_t seed);

  // The training steps of a rank since its last start, as far as this node knows them.
  using StepsOf = std::function<std::uint64_t(int rank)>;
  // The actions that have become due by `seconds`. Requires: called with growing times.
  std::vector<Action> due(double seconds, int world_size, const StepsOf& steps);
  // When due() has to be called next; kNever when only faults are left that wait for steps.
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
