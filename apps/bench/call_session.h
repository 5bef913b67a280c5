#pragma once

// A whole measurement of calls: starts caller and callee of every contestant, lets the contestants
// take turns, and collects the figures.
//
// Order: for each way, size and measure, round by round, every contestant once; the first round
// warms up and is not counted. What fails is handled as in a session of collectives (session.h).
//
// Small messages, up to kEchoedBytes, are echoed, and all measures apply. A larger one gets a short
// reply, so that the time is that of one transfer, and only blocking calls are measured.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/bench/messages.h"
#include "apps/bench/rank_set.h"
#include "apps/bench/report.h"

namespace paceline::bench {

inline constexpr std::size_t kEchoedBytes = 4096;
inline constexpr std::size_t kLeastCallBytes = 16, kMostCallBytes = std::size_t{64} << 20;

struct CallSessionOptions {
  std::vector<std::size_t> sizes = {64, 1 << 20};
  std::vector<CallWay> ways = {std::begin(kAllCallWays), std::end(kAllCallWays)};
  std::vector<CallMeasure> measures = {std::begin(kAllCallMeasures), std::end(kAllCallMeasures)};
  std::vector<std::string> peers{};  // names of the catalog, beside paceline
  std::string python{};              // of torch; empty: the system's
  bool busy = false;                 // all cores compute meanwhile
  std::chrono::microseconds spin{};  // JoinOptions::spin of Paceline's workers
  int rounds = 5;
  double seconds = 0.3;  // of a turn
  std::chrono::seconds turn_limit{60};
  std::string programs{};            // where the contestants' programs are
  std::string command{}, version{};  // for the report: as typed, and Paceline's
};

struct CallSessionEvents {
  // When all rounds of a way, size and measure are done.
  std::function<void(const std::vector<CallRow>& rows)> on_rows;
  // Asked before each turn: true ends the measurement there, and a note says so.
  std::function<bool()> is_interrupted;
};

class CallSession {
 public:
  // As Session.
  explicit CallSession(CallSessionOptions options);
  ~CallSession();
  CallSession(const CallSession&) = delete;
  CallSession& operator=(const CallSession&) = delete;

  const CallReport& report() const { return report_; }
  const CallReport& run(const CallSessionEvents& events = {});

 private:
  struct Point;
  struct Entrant;

  void make_sets();
  void keep_cores_busy();
  std::vector<Point> points() const;
  std::vector<CallRow> finished_rows(CallWay way) const;
  std::vector<CallRow> measure(const Point& point, const CallSessionEvents& events);
  void take_turns(Entrant& entrant, const Point& point, bool counts);

  const CallSessionOptions options_;
  const launcher::Placement plan_;
  CallReport report_;
  std::vector<std::unique_ptr<RankSet>> sets_;
  std::vector<Entrant> entrants_;
  std::vector<std::jthread> busy_;
};

}  // namespace paceline::bench
