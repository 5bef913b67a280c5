#pragma once

// A whole measurement of calls: starts the caller and the callee of every contestant, lets the
// contestants take turns (turn_taking.h), and collects the figures. A point of the measurement is a
// combination of a transport (CallTransport), a size and a measure (CallMeasure).
//
// Small messages, up to kEchoedBytes, are echoed, and all measures apply. Larger messages get a
// short reply, so the time is that of one transfer, and only blocking calls are measured.

#include <string>
#include <thread>
#include <vector>

#include "apps/bench/messages.h"
#include "apps/bench/turn_taking.h"

namespace paceline::bench {

inline constexpr std::size_t kEchoedBytes = 4096;
inline constexpr std::size_t kMinCallBytes = 16, kMaxCallBytes = std::size_t{64} << 20;

struct CallSessionOptions : TurnOptions {
  CallSessionOptions() { turn_limit = std::chrono::seconds(60); }

  std::vector<std::size_t> sizes = {64, 1 << 20};
  std::vector<CallTransport> ways = {std::begin(kAllCallWays), std::end(kAllCallWays)};
  std::vector<CallMeasure> measures = {std::begin(kAllCallMeasures), std::end(kAllCallMeasures)};
  std::string python;    // the interpreter for torch; empty: the system's
  bool busy = false;     // all cores compute during the measurement
  double seconds = 0.3;  // length of a turn
};

using CallSessionEvents = TurnEvents<CallRow>;

struct CallPoint {
  CallTransport way;
  std::size_t bytes;
  CallMeasure measure;
};

// A contestant whose caller and callee use one of the transports.
struct CallEntrant : Entrant {
  CallTransport way = CallTransport::kUnix;
  std::vector<CallRow> rows;  // of the current point, one for each measured number
};

class CallSession : public TurnTaking<CallReport, CallPoint, CallEntrant> {
 public:
  // Starts all contestants, like the constructor of Session (collective_session.h).
  explicit CallSession(CallSessionOptions options);

 private:
  void keep_cores_busy();
  std::vector<CallPoint> points() const override;
  std::string text_of(const CallPoint& point) const override;
  bool enter(CallEntrant& entrant, const CallPoint& point) override;
  std::string take_turn(CallEntrant& entrant, const CallPoint& point, bool counts) override;
  std::vector<CallRow> finished_rows(const CallPoint& point) const override;

  const CallSessionOptions options_;
  std::vector<std::jthread> busy_;
};

}  // namespace paceline::bench
