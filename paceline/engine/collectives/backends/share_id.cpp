#include "paceline/engine/collectives/backends/share_id.h"

#include <algorithm>

#include "paceline/engine/collectives/backends/wait_for_keys.h"
#include "paceline/engine/core/check.h"

namespace paceline {

void share_id(const LibraryContext& context, std::span<char> id, const std::string& library) {
  const std::string key = "id";
  if (context.rank == 0) {
    context.store->set(key, std::string(id.begin(), id.end()));
    return;
  }
  wait_for_keys(*context.store, {key}, context.mesh, context.deadline, library);
  const std::string theirs = context.store->get(key);
  if (theirs.size() != id.size()) {
    fail(ErrorCode::kCorrupt,
         "{}: forming group {}: the id of {} that rank 0 gave has {} bytes, not {}; build all "
         "ranks with the same {}",
         context.self(), context.group, library, theirs.size(), id.size(), library);
  }
  std::copy(theirs.begin(), theirs.end(), id.begin());
}

}  // namespace paceline
