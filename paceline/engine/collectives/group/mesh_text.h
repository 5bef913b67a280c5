#pragma once

// A mesh as a drawing for people (DeviceMesh::describe()), for hosts that need not exist.
//
// Thread safety: a pure function.

#include <string>
#include <vector>

#include "paceline/engine/collectives/group/device_mesh.h"

namespace paceline {

// `hosts` are the hosts of the mesh's ranks.
std::string describe_mesh(const std::vector<MeshAxis>& axes, const Hosts& hosts);

}  // namespace paceline
