#pragma once

// The wait of a library's ranks for each other's keys, while they connect.

#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

// Until all are there, a peer dies (the mesh's error) or the deadline passes: Error(kTimeout) that
// says that a rank did not arrive to connect with `library`.
void wait_for_keys(Store& store, const std::vector<std::string>& keys, Mesh& mesh,
                   Deadline deadline, const std::string& library);

}  // namespace paceline
