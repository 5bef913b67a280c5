#include "paceline/engine/collectives/backends/blocking_calls.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

namespace {

constexpr std::chrono::microseconds kSpin{500};
constexpr std::chrono::microseconds kNap{50};
// How long a wait may last before it checks the peers and the deadline again.
constexpr std::chrono::milliseconds kCheckInterval{2};

}  // namespace

void wait_until(const std::function<bool()>& attempt, Mesh& mesh, Deadline deadline,
                const std::function<std::string(double seconds)>& late) {
  const auto begin = AwakeClock::now();
  for (Vigil vigil; !attempt();) {
    mesh.throw_if_failed();
    if (!vigil.sees_passed(deadline)) continue;
    const std::chrono::duration<double> waited = AwakeClock::now() - begin;
    throw Error(ErrorCode::kTimeout, late(waited.count()));
  }
}

void poll_until(const std::function<bool()>& done, Mesh& mesh, Deadline deadline,
                const std::string& what) {
  const auto begin = Deadline::Clock::now();
  const auto poll_for_a_while = [&] {
    const auto until = Deadline::Clock::now() + kCheckInterval;
    while (!done()) {
      const auto now = Deadline::Clock::now();
      if (now >= until) return false;
      if (now - begin > kSpin) {
        std::this_thread::sleep_for(kNap);
      } else if (mesh.oversubscribed()) {
        std::this_thread::yield();
      }
    }
    return true;
  };
  wait_until(poll_for_a_while, mesh, deadline, [&](double seconds) {
    return fmt::format(
        "{}: {} of group {} timed out after {:.1f} s, though every rank had begun it; {}",
        mesh.self(), what, mesh.name(), seconds, kAdviceForLate);
  });
}

struct BlockingCalls::Exchange {
  std::mutex mutex;  // guards all members below
  std::condition_variable changed;
  std::function<void()> call;  // the call to be carried out; empty if none
  bool is_done = false;        // the last call has returned
  bool ends = false;           // no other call will follow
  std::exception_ptr error;    // the exception of the last call

  void serve() {
    const BrokenPipeGuard guard;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return call || ends; });
      if (!call) return;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        call();
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      call = nullptr;
      error = thrown;
      is_done = true;
      changed.notify_all();
    }
  }

  void begin(std::function<void()> next) {
    const std::lock_guard lock(mutex);
    call = std::move(next);
    error = nullptr;
    is_done = false;
    changed.notify_all();
  }

  bool is_done_within(std::chrono::nanoseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [&] { return is_done; });
  }
};

BlockingCalls::BlockingCalls(const std::string& thread_name)
    : exchange_(std::make_shared<Exchange>()), thread_([exchange = exchange_, thread_name] {
        pthread_setname_np(pthread_self(), thread_name.c_str());
        exchange->serve();
      }) {}

BlockingCalls::~BlockingCalls() {
  if (!owner_.is_this()) {  // a child of fork() has no such thread
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(exchange_->mutex);
    exchange_->ends = true;
  }
  exchange_->changed.notify_all();
  if (given_up_) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void BlockingCalls::run(std::function<void()> call, Mesh& mesh, Deadline deadline,
                        const std::string& what) {
  exchange_->begin(std::move(call));
  try {
    poll_until([&] { return exchange_->is_done_within(kCheckInterval); }, mesh, deadline, what);
  } catch (...) {
    given_up_ = true;
    throw;
  }
  rethrow();
}

bool BlockingCalls::run_until(Deadline deadline, std::function<void()> call) {
  exchange_->begin(std::move(call));
  given_up_ = !exchange_->is_done_within(deadline.remaining());
  if (!given_up_) rethrow();
  return !given_up_;
}

bool BlockingCalls::catch_up(Deadline deadline) {
  if (!given_up_) return true;
  given_up_ = !exchange_->is_done_within(deadline.remaining());
  return !given_up_;
}

void BlockingCalls::rethrow() {
  if (exchange_->error) std::rethrow_exception(exchange_->error);
}

namespace {

// How long an abandoned call may take to return before the turn counts as lost: if the peers have
// also begun the call, it still completes.
constexpr std::chrono::seconds kGrace{3};

struct Turn {
  std::mutex mutex;  // guards all members below
  std::condition_variable given_back;
  bool taken = false;
  bool kept = false;
  std::optional<Deadline> lost_at;  // when the turn counts as lost, because its holder has given up
};

// Never destroyed, because an abandoned call may give its turn back while the process ends.
Turn& turn() {
  static Turn& one = *new Turn;
  return one;
}

void require_not_lost(const Mesh& mesh, const std::string& what) {
  if (!ProcessTurn::is_lost()) return;
  fail(ErrorCode::kSystem,
       "{}: {} of group {}: the library cannot be used any more in this process (pid {}), "
       "because a call of another group failed inside it or never returned; start the process "
       "again, or choose another backend",
       mesh.self(), what, mesh.name(), getpid());
}

std::shared_ptr<ProcessTurn> wait_for_turn(Mesh& mesh, Deadline deadline, const std::string& what) {
  std::shared_ptr<ProcessTurn> taken;
  const auto take = [&] {
    taken = ProcessTurn::take(kCheckInterval);
    if (!taken) require_not_lost(mesh, what);
    return taken != nullptr;
  };
  wait_until(take, mesh, deadline, [&](double seconds) {
    return fmt::format(
        "{}: {} of group {} timed out after {:.1f} s: another group of this process (pid {}) is "
        "inside the library, which serves one at a time",
        mesh.self(), what, mesh.name(), seconds, getpid());
  });
  return taken;
}

}  // namespace

std::shared_ptr<ProcessTurn> ProcessTurn::take(std::chrono::nanoseconds wait) {
  std::shared_ptr<ProcessTurn> mine(new ProcessTurn);
  std::unique_lock lock(turn().mutex);
  if (!turn().given_back.wait_for(lock, wait, [] { return !turn().taken; })) return nullptr;
  turn().taken = mine->is_taken_ = true;
  return mine;
}

bool ProcessTurn::is_lost() {
  const std::lock_guard lock(turn().mutex);
  return turn().kept || (turn().lost_at && turn().lost_at->expired());
}

void ProcessTurn::give_up() {
  const std::lock_guard lock(turn().mutex);
  if (!turn().lost_at) turn().lost_at = Deadline::after(kGrace);
}

void ProcessTurn::keep() {
  const std::lock_guard lock(turn().mutex);
  turn().kept = true;
}

ProcessTurn::~ProcessTurn() {
  if (!is_taken_) return;
  {
    const std::lock_guard lock(turn().mutex);
    if (turn().kept) return;
    turn().taken = false;
    turn().lost_at.reset();
  }
  turn().given_back.notify_one();
}

std::shared_ptr<ProcessTurn> take_turns(const Agree& agree, const std::vector<int>& world_ranks,
                                        Mesh& mesh, Deadline deadline, const std::string& what) {
  require_not_lost(mesh, what);
  auto taken = ProcessTurn::take(std::chrono::nanoseconds(0));
  if (agree(taken != nullptr)) return taken;
  taken.reset();
  auto ascending = world_ranks;
  std::sort(ascending.begin(), ascending.end());
  const int own = world_ranks[static_cast<std::size_t>(mesh.rank())];
  for (const int next : ascending) {
    if (next == own) taken = wait_for_turn(mesh, deadline, what);
    agree(true);
  }
  return taken;
}

}  // namespace paceline
