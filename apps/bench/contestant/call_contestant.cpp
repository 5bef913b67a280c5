#include "apps/bench/contestant/call_contestant.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <latch>
#include <thread>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/core/timing.h"

#include "apps/bench/contestant/contestant_process.h"
#include "apps/bench/report.h"

namespace paceline::bench {

namespace {

using namespace std::chrono_literals;

// The longest wait for the end of a turn; the session's limit (TurnOptions::turn_limit) is normally
// shorter.
constexpr auto kTurnLimit = 600s;

std::vector<std::byte> make_request(const CallTurn& turn, int slow_ms) {
  check(turn.bytes >= sizeof(CallHead), "a request has at least {} bytes", sizeof(CallHead));
  std::vector<std::byte> request(turn.bytes, std::byte{1});
  const CallHead head{.bytes = static_cast<std::uint32_t>(turn.bytes),
                      .reply_bytes = static_cast<std::uint32_t>(turn.reply_bytes),
                      .slow_ms = static_cast<std::uint32_t>(slow_ms)};
  std::memcpy(request.data(), &head, sizeof head);
  return request;
}

// Makes the calls of one caller until the turn is over.
CallTimes call_in_turn(CallContestant& contestant, const CallLoad& load, int caller) {
  CallTimes times;
  for (; load.goes_on(); ++times.calls) {
    if (load.is_slow(caller, times.calls)) {
      contestant.call(load.slow_request());
      continue;
    }
    const auto begin = CallClock::now();
    contestant.call(load.request());
    times.seconds.push_back(seconds_since(begin));
  }
  return times;
}

CallTurnResult measure(CallContestant& contestant, const CallTurn& turn) {
  CallTurnResult result{.lacks = contestant.lacks(turn)};
  if (!result.lacks.empty()) return result;
  CallLoad load(turn);
  CallTimes times;
  load.start();
  switch (turn.form) {
    case CallTurn::Form::kBlocking:
      times = contestant.call_all(load);
      break;
    case CallTurn::Form::kPipelined:
      times.calls = contestant.pipeline(load);
      break;
    case CallTurn::Form::kOneWay:
      times.calls = contestant.tell(load);
      break;
  }
  result.per_second = static_cast<double>(times.calls) / load.seconds_since_start();
  if (!times.seconds.empty()) {
    result.p50_us = percentile(times.seconds, 50) * 1e6;
    result.p99_us = percentile(times.seconds, 99) * 1e6;
  }
  return result;
}

}  // namespace

CallHead head_of(std::span<const std::byte> request) {
  CallHead head;
  std::memcpy(&head, request.data(), sizeof head);
  return head;
}

CallLoad::CallLoad(const CallTurn& turn)
    : turn_(turn),
      request_(make_request(turn, 0)),
      slow_request_(make_request(turn, turn.slow_ms)) {}

void CallLoad::start() {
  begin_ = CallClock::now();
  end_ = begin_ + std::chrono::duration_cast<CallClock::duration>(
                      std::chrono::duration<double>(turn_.seconds));
}

double CallLoad::seconds_since_start() const { return seconds_since(begin_); }

bool CallLoad::is_slow(int caller, std::uint64_t call) const {
  if (turn_.slow_every == 0) return false;
  const auto every = static_cast<std::uint64_t>(turn_.slow_every);
  const auto first =
      static_cast<std::uint64_t>(caller) * every / static_cast<std::uint64_t>(turn_.width);
  return (call + first) % every == 0;
}

CallTimes CallContestant::call_all(CallLoad& load) {
  const auto width = static_cast<std::size_t>(load.turn().width);
  if (width == 1) return call_in_turn(*this, load, 0);
  std::vector<CallTimes> times(width);
  std::vector<std::exception_ptr> errors(width);
  std::latch ready(load.turn().width), gate(1);
  {
    std::vector<std::jthread> callers;
    for (std::size_t i = 0; i < width; ++i) {
      callers.push_back(start_thread("caller", [&, i] {
        ready.count_down();
        gate.wait();
        try {
          times[i] = call_in_turn(*this, load, static_cast<int>(i));
        } catch (...) {
          errors[i] = std::current_exception();
        }
      }));
    }
    ready.wait();
    load.start();
    gate.count_down();
  }
  CallTimes all;
  for (std::size_t i = 0; i < width; ++i) {
    if (errors[i]) std::rethrow_exception(errors[i]);
    all.calls += times[i].calls;
    all.seconds.insert(all.seconds.end(), times[i].seconds.begin(), times[i].seconds.end());
  }
  return all;
}

int run_call_worker(int argc, char** argv, const ConnectCalls& connect) {
  return run_rank(argc, argv, [&](RankEnd& end, const Setup& setup) {
    const char* const port = std::getenv("MASTER_PORT");  // the launcher keeps this port free
    check(port != nullptr, "MASTER_PORT is not set");
    const CallPlace place{.is_caller = end.environment().rank == 0,
                          .uses_tcp = setup.option == "tcp",
                          .unix_name = std::string(argv[1]) + "-callee",
                          .tcp = {"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port))}};
    const auto contestant = connect(place);
    StartBarrier end_of_turn(setup.start_line, end.environment().rank, end.environment().world_size,
                             false);
    end.serve<CallTurn>({.version = contestant->version()}, [&](const CallTurn& turn) {
      CallTurnResult result;
      if (place.is_caller) result = measure(*contestant, turn);
      end_of_turn.line_up(Deadline::after(kTurnLimit));
      return result;
    });
  });
}

std::string way_of(const CallPlace& place) {
  return place.uses_tcp ? "over TCP" : "over UNIX sockets";
}

void check_reply(std::span<const std::byte> request, std::size_t reply_bytes) {
  const CallHead head = head_of(request);
  if (reply_bytes != head.reply_bytes) {
    fail(ErrorCode::kCorrupt, "a reply has {} bytes, not {}", reply_bytes, head.reply_bytes);
  }
}

}  // namespace paceline::bench
