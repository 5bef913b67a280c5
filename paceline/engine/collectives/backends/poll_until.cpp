#include "paceline/engine/collectives/backends/poll_until.h"

#include <thread>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/vigil.h"
#include "paceline/engine/transport/advice.h"

namespace paceline {
namespace {

constexpr std::chrono::microseconds kSpin{500};
constexpr std::chrono::microseconds kNap{50};
// How often it looks for dead peers and at the deadline.
constexpr std::chrono::milliseconds kLookAtPeers{2};

void look(Mesh& mesh, Vigil& vigil, Deadline& deadline, const std::string& what,
          AwakeClock::time_point begin) {
  mesh.throw_if_failed();
  if (vigil.sees_passed(deadline)) {
    const std::chrono::duration<double> waited = AwakeClock::now() - begin;
    fail(ErrorCode::kTimeout,
         "{}: {} of group {} timed out after {:.1f} s, though every rank had begun it; {}",
         mesh.self(), what, mesh.name(), waited.count(), kAdviceForLate);
  }
}

}  // namespace

void poll_until(const std::function<bool()>& done, Mesh& mesh, Deadline deadline,
                const std::string& what) {
  const auto awake_begin = AwakeClock::now();
  const auto begin = Deadline::Clock::now();
  auto next_look = begin + kLookAtPeers;
  Vigil vigil;
  while (!done()) {
    const auto now = Deadline::Clock::now();
    if (now >= next_look) {
      look(mesh, vigil, deadline, what, awake_begin);
      next_look = now + kLookAtPeers;
    }
    if (now - begin > kSpin) {
      std::this_thread::sleep_for(kNap);
    } else if (mesh.oversubscribed()) {
      std::this_thread::yield();
    }
  }
}

}  // namespace paceline
