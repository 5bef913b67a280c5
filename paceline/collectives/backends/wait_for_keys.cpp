#include "paceline/collectives/backends/wait_for_keys.h"

#include "paceline/core/check.h"

namespace paceline {
namespace {

// How often a wait for the store looks whether a peer has died.
constexpr std::chrono::milliseconds kSlice{50};

}  // namespace

void wait_for_keys(Store& store, const std::vector<std::string>& keys, Mesh& mesh,
                   Deadline deadline, const std::string& library) {
  while (!store.check(keys)) {
    mesh.throw_if_failed();
    if (deadline.expired()) {
      fail(ErrorCode::kTimeout, "rank {}: a rank of group {} did not come to connect with {}",
           mesh.rank(), mesh.name(), library);
    }
    try {
      store.wait(keys, kSlice);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
    }
  }
}

}  // namespace paceline
