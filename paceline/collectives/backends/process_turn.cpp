#include "paceline/collectives/backends/process_turn.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "paceline/core/check.h"

namespace paceline {
namespace {

// How long a wait may go without a look at the peers.
constexpr std::chrono::milliseconds kLook{2};

struct Turn {
  std::mutex mutex;
  std::condition_variable given_back;
  bool taken = false;
};

// Not destroyed: a call that was given up may give its turn back while the process ends.
Turn& turn() {
  static Turn& one = *new Turn;
  return one;
}

std::shared_ptr<ProcessTurn> wait_for_turn(Mesh& mesh, Deadline deadline, const std::string& what) {
  for (;;) {
    if (auto taken =
            ProcessTurn::take(std::min<std::chrono::nanoseconds>(kLook, deadline.remaining()))) {
      return taken;
    }
    mesh.throw_if_failed();
    if (!deadline.expired()) continue;
    fail(ErrorCode::kTimeout,
         "rank {}: {} of group {} timed out: another group of this process is inside the library, "
         "which serves one at a time; if a rank of that group is gone its call may never return, "
         "and this process needs another backend, or to start anew",
         mesh.rank(), what, mesh.name());
  }
}

}  // namespace

std::shared_ptr<ProcessTurn> ProcessTurn::take(std::chrono::nanoseconds wait) {
  std::unique_lock lock(turn().mutex);
  if (!turn().given_back.wait_for(lock, wait, [] { return !turn().taken; })) return nullptr;
  turn().taken = true;
  return std::shared_ptr<ProcessTurn>(new ProcessTurn);
}

ProcessTurn::~ProcessTurn() {
  {
    const std::lock_guard lock(turn().mutex);
    turn().taken = false;
  }
  turn().given_back.notify_one();
}

std::shared_ptr<ProcessTurn> take_turns(const Agree& agree, const std::vector<int>& world_ranks,
                                        Mesh& mesh, Deadline deadline, const std::string& what) {
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
