#pragma once

// The ranks of a group as a grid with named axes, for jobs that divide a model in several ways:
// each axis has its groups, which consist of the ranks that differ only along that axis.
//
//   DeviceMesh mesh(world, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
//   mesh.group("tp")->all_reduce(...);
//
// Ranks are numbered row by row, so neighbours along the last axis have consecutive numbers. Put
// the axis that communicates most at the end: it stays within a host if ranks are numbered host by
// host and its size divides each host's number of ranks. describe() shows which axes cross hosts.
//
// Rules. All ranks of the group make the same meshes in the same order. Blocking calls of different
// axes must come in the same order on all ranks; in addition, only one axis at a time may
// have asynchronous calls under way. The axes' groups can use the symmetric memory of the group
// from which they are made.
//
// Thread safety: reading is safe from any thread; the groups have the rules of ProcessGroup. Meshes
// are values that share the groups.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

struct MeshAxis {
  std::string name;  // letters, digits, '_' and '-'
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

// Parses an option such as "dp=2,tp=1,pp=1" into axes in that order. Error(kInvalid) names a part
// that is not NAME=SIZE with a size of at least 1, or a name that occurs twice.
std::vector<MeshAxis> parse_mesh(std::string_view text);
std::string to_string(const std::vector<MeshAxis>& axes);

class DeviceMesh {
 public:
  // Collective. Error(kInvalid), on every rank, if the product of the sizes is not the group's
  // size, a size is not positive, a name is invalid or occurs twice, or the ranks name different
  // axes.
  DeviceMesh(std::shared_ptr<ProcessGroup> world, std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  // The group of all ranks of the mesh.
  const std::shared_ptr<ProcessGroup>& world() const { return world_; }
  // The group along an axis. Error(kInvalid) for an unknown name, as in size() and rank().
  const std::shared_ptr<ProcessGroup>& group(std::string_view axis) const;
  int size(std::string_view axis) const { return axes_[index_of(axis)].size; }
  // This rank's position along the axis, from 0, which is its rank in group(axis).
  int rank(std::string_view axis) const { return group(axis)->rank(); }
  bool has(std::string_view axis) const;

  // Collective over the mesh. Returns the ranks that differ from this one along `axes` only, as a
  // mesh with these axes in this mesh's order. The new mesh shares the axes' groups and has a new
  // group for all its ranks, world().
  DeviceMesh sub_mesh(const std::vector<std::string>& axes) const;

  // A text for users: a summary; for each group of the last axis, its hosts, its positions on the
  // other axes and its ranks; for each axis of several ranks, whether it stays within a host; and,
  // if the last axis crosses hosts, a hint on how to keep it within a host.
  std::string describe() const;

 private:
  DeviceMesh() = default;
  std::size_t index_of(std::string_view axis) const;

  std::shared_ptr<ProcessGroup> world_;  // owners: the user and this object, as for groups_
  std::vector<MeshAxis> axes_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;  // one group for each axis
};

}  // namespace paceline

namespace paceline::detail {

// The text of DeviceMesh::describe() for a mesh on the given hosts, which need not exist. `hosts`
// are the hosts of the mesh's ranks. Thread safety: a pure function.
std::string describe_mesh(const std::vector<MeshAxis>& axes, const Hosts& hosts);

}  // namespace paceline::detail
