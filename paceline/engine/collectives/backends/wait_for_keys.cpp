#include "paceline/engine/collectives/backends/wait_for_keys.h"

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/vigil.h"

namespace paceline {
namespace {

// How often a wait for the store looks whether a peer has died.
constexpr std::chrono::milliseconds kSlice{50};

}  // namespace

void wait_for_keys(Store& store, const std::vector<std::string>& keys, Mesh& mesh,
                   Deadline deadline, const std::string& library) {
  const auto begin = AwakeClock::now();
  for (Vigil vigil; !store.check(keys);) {
    mesh.throw_if_failed();
    if (vigil.sees_passed(deadline)) {
      const std::chrono::duration<double> waited = AwakeClock::now() - begin;
      fail(ErrorCode::kTimeout,
           "{}: a rank of group {} did not arrive within {:.1f} s to connect with {}", mesh.self(),
           mesh.name(), waited.count(), library);
    }
    try {
      store.wait(keys, kSlice);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
    }
  }
}

}  // namespace paceline
