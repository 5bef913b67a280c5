#include "paceline/engine/core/awake_clock.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

namespace paceline {

namespace {

using Clock = AwakeClock::Monotonic;
using Moment = Clock::time_point;

constexpr std::size_t kMaxKept = 8;

struct Standstill {
  Moment from, to;
};

// None of the following variables has a destructor, because groups in global variables may wait
// until the very end of the process.
std::mutex mutex;  // guards recorded_until, kept and num_seen
Moment recorded_until{};
std::array<Standstill, kMaxKept> kept{};
std::size_t num_seen = 0;  // all standstills so far; the last kMaxKept are kept

// Calls `look` with each standstill that is kept, oldest first. Requires: mutex is held.
template <class Look>
void for_each_standstill(const Look& look) {
  for (std::size_t i = num_seen - std::min(num_seen, kMaxKept); i < num_seen; ++i)
    look(kept[i % kMaxKept]);
}

// When any Vigil of this process last looked, to within kNoted.
std::atomic<Clock::rep> last_look{0};
constexpr std::chrono::milliseconds kNoted{100};

// The deadline `moment` of a wait that began at `looked`, extended by the standstills since then.
Moment prolonged(Moment moment, Moment looked) {
  const std::lock_guard lock(mutex);
  for_each_standstill([&](const Standstill& one) {
    if (one.to > looked)
      moment = std::max(moment + (one.to - one.from), one.to + AwakeClock::kMinTimeLeft);
  });
  return moment;
}

}  // namespace

void AwakeClock::stood_still(Moment from, Moment to) {
  const std::lock_guard lock(mutex);
  from = std::max(from, recorded_until);
  if (from >= to) return;
  recorded_until = to;
  kept[num_seen++ % kMaxKept] = {from, to};
  const duration slept = duration(slept_.load(std::memory_order_relaxed)) + (to - from);
  woke_.store((to.time_since_epoch() - slept).count(), std::memory_order_relaxed);
  slept_.store(slept.count(), std::memory_order_relaxed);
}

Moment AwakeClock::put_off(Moment moment) {
  const std::lock_guard lock(mutex);
  for_each_standstill([&](const Standstill& one) {
    if (moment >= one.from && moment < one.to)
      moment = one.to + std::max<duration>(moment - one.from, kMinTimeLeft);
  });
  return moment;
}

Deadline put_off(const Deadline& deadline) {
  if (!deadline.expired()) return deadline;
  const auto later = AwakeClock::put_off(deadline.moment());
  return later == deadline.moment() ? deadline : Deadline::after(later - Clock::now());
}

Deadline put_off_since(Deadline::Clock::time_point begun, const Deadline& deadline) {
  if (deadline.moment() == Moment::max()) return deadline;
  const auto later = prolonged(deadline.moment(), begun);
  return put_off(later == deadline.moment() ? deadline : Deadline::after(later - Clock::now()));
}

void Vigil::look() {
  const auto now = Clock::now();
  const Moment last{Clock::duration(last_look.load())};
  const auto awake = std::max(looked_, last);
  if (now - awake >= kStandstill) AwakeClock::stood_still(awake, now);
  looked_ = now;
  // last_look is stored rarely, because other threads read it in their loops. It is stored last,
  // because a thread that reads the new value must find the standstill recorded.
  if (now - last >= kNoted) last_look.store(now.time_since_epoch().count());
}

bool Vigil::sees_passed(Deadline& deadline) {
  if (!std::exchange(has_seen_deadline_, true)) looked_ = std::min(looked_, deadline.set_at());
  const auto looked = looked_;
  look();
  if (!deadline.expired() && looked_ - looked < kStandstill) return false;
  if (deadline.moment() == Moment::max()) return false;
  deadline = put_off_since(looked, deadline);
  return deadline.expired();
}

}  // namespace paceline
