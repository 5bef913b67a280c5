#include "paceline/engine/collectives/backends/process_turn.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

#include <unistd.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/vigil.h"

namespace paceline {
namespace {

// How long a wait may go without a look at the peers.
constexpr std::chrono::milliseconds kLookAtTurn{2};
// A call that was given up may still return: its peers may have begun it.
constexpr std::chrono::seconds kGrace{3};

struct Turn {
  std::mutex mutex;  // of all that follows
  std::condition_variable given_back;
  bool taken = false;
  bool kept = false;
  std::optional<Deadline> lost_at;  // when its holder has given up
};

// Not destroyed: a call that was given up may give its turn back while the process ends.
Turn& turn() {
  static Turn& one = *new Turn;
  return one;
}

void require_not_lost(const Mesh& mesh, const std::string& what) {
  if (!ProcessTurn::is_lost()) return;
  fail(ErrorCode::kSystem,
       "{}: {} of group {}: the library cannot be used any more in this process (pid {}), "
       "because a call of another group broke off inside it or never returned; start the process "
       "again, or choose another backend",
       mesh.self(), what, mesh.name(), getpid());
}

std::shared_ptr<ProcessTurn> wait_for_turn(Mesh& mesh, Deadline deadline, const std::string& what) {
  const auto begin = AwakeClock::now();
  for (Vigil vigil;;) {
    if (auto taken = ProcessTurn::take(kLookAtTurn)) return taken;
    mesh.throw_if_failed();
    require_not_lost(mesh, what);
    if (vigil.sees_passed(deadline)) {
      fail(ErrorCode::kTimeout,
           "{}: {} of group {} timed out after {:.1f} s: another group of this process (pid {}) is "
           "inside the library, which serves one at a time",
           mesh.self(), what, mesh.name(),
           std::chrono::duration<double>(AwakeClock::now() - begin).count(), getpid());
    }
  }
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
