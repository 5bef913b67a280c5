#pragma once

// Waits for a library's operation that can only be asked whether it is done.

#include <functional>
#include <string>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

// Polls; after 0.5 ms with naps of 50 us between. Error(kTimeout), which says `what` timed out, and
// the mesh's failures end the wait within milliseconds.
void poll_until(const std::function<bool()>& done, Mesh& mesh, Deadline deadline,
                const std::string& what);

}  // namespace paceline
