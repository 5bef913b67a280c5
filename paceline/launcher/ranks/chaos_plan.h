#pragma once

// The faults that `paceline run --chaos` injects into ranks, at moments that follow from a seed.
// The option takes a list of faults, separated by commas. Each has the form
//
//   KIND[:rank=N][:rate=1/S | :every=S][:for=S][@S | @stepN]
//
//   kill   SIGKILL
//   stop   freezes the rank for `for` seconds (default: 5), then continues it
//   slow   freezes it half of the time, in slices of 20 ms, for `for` seconds (default: until the
//          job ends)
//
//   kill:rate=1/15s     a random rank, on average every 15 s
//   kill:every=15s      a random rank, exactly every 15 s
//   stop:rank=1@30s     once, 30 s after the start; without @30s: once, at the start
//   kill:rank=1@step50  once, as soon as this rank has made 50 steps since its last start
//
// Times are from 1 ms to 1e7 s, and a rate is at most one fault per millisecond. A fault for a rank
// that is not in the world does nothing. The same seed and world give the same moments and ranks on
// every machine, so all agents of a job follow the same plan, each for its own ranks. @stepN
// requires a rank, because each agent knows only the steps of its own ranks.
//
// The plan does no I/O and reads no clock: time is given in seconds since the job's first start.

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
  std::optional<int> rank;               // nullopt: a random rank each time
  double mean_seconds = 0;               // above 0: repeated at random, with this mean interval
  double every_seconds = 0;              // above 0: repeated with this interval
  double at_seconds = 0;                 // moment of a single fault; unused if repeated
  double for_seconds = 0;                // 0: until the job ends
  std::optional<std::uint64_t> at_step;  // single fault, instead of at_seconds
  bool operator==(const Fault&) const = default;
};

// Error(kInvalid) names the wrong part and shows the correct form.
std::vector<Fault> parse_faults(const std::string& text);

class ChaosPlan {
 public:
  static constexpr double kNever = 1e300;
  static constexpr double kSlice = 0.02;

  // A signal to send to a rank now.
  struct Action {
    int rank = 0;
    int signal = 0;
    std::string fault;  // "kill" and so on for a fault's first signal; empty for later ones
  };

  ChaosPlan(const std::vector<Fault>& faults, std::uint64_t seed);

  // The training steps that a rank has made since its last start; 0 if this node does not know
  // them.
  using StepsOf = std::function<std::uint64_t(int rank)>;
  // The actions that are due by `seconds` and have not been returned before. Requires: `seconds`
  // never decreases between calls.
  std::vector<Action> due(double seconds, int world_size, const StepsOf& steps);
  // When due() has to be called next; kNever when all remaining faults wait for steps.
  double next_moment() const;
  bool waits_for_steps() const;

 private:
  struct Pending {
    Fault fault;
    double moment = 0;
    bool done = false;
    bool is_due(double seconds, const StepsOf& steps) const;
  };
  struct Running {  // a fault of kind stop or slow that has begun
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
