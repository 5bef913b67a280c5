// A process that stood still notices it when it continues. Each test has a process of its own,
// because a whole process stands still.

#include <csignal>
#include <thread>

#include <gtest/gtest.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/socket.h"

#include "tests/harness/stopped_process.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;
using harness::in_a_process;

TEST(Vigil, time_in_which_the_process_was_stopped_does_not_count) {
  EXPECT_TRUE(in_a_process(
      [] {
        Vigil vigil;
        const auto begin = Clock::now();
        const auto begin_awake = AwakeClock::now();
        auto deadline = Deadline::after(500ms);
        raise(SIGSTOP);
        const bool passed = vigil.sees_passed(deadline);
        const auto slept = (Clock::now() - begin) - (AwakeClock::now() - begin_awake);
        return !passed && slept >= 1500ms && AwakeClock::now() - AwakeClock::woke() < 1s;
      },
      1500ms));
}

TEST(Vigil, a_wait_that_a_standstill_interrupts_has_the_time_that_it_had) {
  EXPECT_TRUE(in_a_process(
      [] {
        Vigil vigil;
        auto deadline = Deadline::after(20s);
        raise(SIGSTOP);
        return !vigil.sees_passed(deadline) && deadline.remaining() > 19500ms &&
               !vigil.sees_passed(deadline) && deadline.remaining() < 20100ms;
      },
      1500ms));
}

// Like an operation that is stopped while it reduces, and that waits for its peers only afterwards.
TEST(Vigil, a_standstill_between_a_deadline_and_the_wait_for_it_does_not_count) {
  EXPECT_TRUE(in_a_process(
      [] {
        const auto of_the_operation = Deadline::after(1200ms);
        raise(SIGSTOP);
        Vigil first;
        Deadline deadline = of_the_operation;
        const bool passed = first.sees_passed(deadline);
        Vigil second;  // the operation's next wait
        Deadline again = of_the_operation;
        return !passed && !second.sees_passed(again) && again.remaining() > 500ms;
      },
      2000ms));
}

// Like an operation that only checks whether something has arrived.
TEST(Vigil, a_deadline_that_is_set_after_a_standstill_is_not_put_off) {
  EXPECT_TRUE(in_a_process(
      [] {
        Vigil vigil;
        raise(SIGSTOP);
        vigil.look();
        Vigil later;
        auto deadline = Deadline::after(0ns);
        return later.sees_passed(deadline) && put_off(Deadline::after(0ns)).expired();
      },
      1500ms));
}

TEST(Vigil, a_process_that_looks_often_enough_did_not_stand_still) {
  EXPECT_TRUE(in_a_process([] {
    Vigil vigil, other;
    auto deadline = Deadline::after(1300ms);
    while (!vigil.sees_passed(deadline)) std::this_thread::sleep_for(20ms);
    other.look();  // as if code between two looks took long while the process was awake
    return AwakeClock::woke() == AwakeClock::time_point();
  }));
}

TEST(Vigil, one_standstill_that_several_notice_counts_once) {
  EXPECT_TRUE(in_a_process([] {
    const auto now = Clock::now();
    AwakeClock::stood_still(now - 10s, now - 2s);
    AwakeClock::stood_still(now - 9s, now - 1s);
    const auto slept = Clock::now().time_since_epoch() - AwakeClock::now().time_since_epoch();
    return slept > 8900ms && slept < 9100ms;
  }));
}

TEST(Vigil, a_standstill_counts_for_waits_that_had_begun_before_it) {
  EXPECT_TRUE(in_a_process([] {
    const auto now = Clock::now();
    AwakeClock::stood_still(now - 10s, now - 2s);
    const auto wanted = Deadline::after(1s);
    const auto left = put_off_since(now - 11s, wanted).remaining();
    return left > 8500ms && left < 9100ms &&
           put_off_since(now - 1s, wanted).moment() == wanted.moment() &&
           put_off_since(now - 11s, Deadline::never()).moment() == Deadline::never().moment();
  }));
}

// The process and its peer are both stopped; the peer starts to listen 300 ms after both continue.
TEST(Vigil, a_process_that_was_stopped_while_it_connected_goes_on_trying) {
  const std::string name = "paceline-vigil-test-" + std::to_string(getpid());
  Fd listener;
  const auto connects = [&] {
    harness::stop_soon();
    try {
      return static_cast<bool>(connect_unix(name, Deadline::after(500ms)));
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(in_a_process(connects, 1500ms, [&] {
    std::this_thread::sleep_for(300ms);
    listener = listen_unix(name);
  }));
}

TEST(Vigil, a_deadline_within_a_standstill_has_afterwards_what_was_left_of_it) {
  EXPECT_TRUE(in_a_process([] {
    const auto begin = Clock::now();
    const auto end = begin + 60s;
    AwakeClock::stood_still(begin, end);
    return AwakeClock::put_off(begin + 20s) == end + 20s &&
           AwakeClock::put_off(begin + 1s) == end + AwakeClock::kMinTimeLeft &&
           AwakeClock::put_off(begin - 1s) == begin - 1s && AwakeClock::put_off(end) == end &&
           AwakeClock::put_off(end + 1s) == end + 1s &&
           AwakeClock::put_off(Clock::time_point::max()) == Clock::time_point::max();
  }));
}

}  // namespace
}  // namespace paceline
