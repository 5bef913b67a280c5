#pragma once

// The ranks of a group as a grid with named axes, for jobs that divide a model in several ways: a
// group for each way, made of the ranks that differ along that axis only.
//
//   DeviceMesh mesh(world, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
//   mesh.group("tp")->all_reduce(...);
//
// Ranks are numbered row by row, so neighbours along the last axis have consecutive numbers: name
// the axis that communicates most last, and it stays within a host where its size divides the ranks
// of a host. describe() shows which axes cross hosts.
//
// Rules. All ranks of the group make the same meshes in the same order. Blocking calls of different
// axes must come in the same order on all ranks; only one axis at a time may have asynchronous
// calls beside them. The axes' groups know the symmetric memory of the group they are made of.
//
// Thread safety: reading is safe from any thread; the groups' is that of ProcessGroup. Values that
// share the groups.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

struct MeshAxis {
  std::string name;  // letters, digits, '_' and '-'
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

// "dp=2,tp=1,pp=1", as options have it, to its axes in that order. Error(kInvalid) naming the part
// that is not NAME=SIZE with a size of at least 1, or the name that comes twice.
std::vector<MeshAxis> parse_mesh(std::string_view text);
std::string to_string(const std::vector<MeshAxis>& axes);

// A drawing for people: a line for each group of the last axis, with its hosts, its places on the
// other axes and its ranks; then, of each axis, whether it stays within hosts; then a hint when
// another order or size would keep the last axis within hosts. `hosts` has the mesh's ranks.
std::string describe_mesh(const std::vector<MeshAxis>& axes, const Hosts& hosts);

class DeviceMesh {
 public:
  // Collective. Error(kInvalid), on every rank, when the sizes do not multiply to the group's
  // ranks, a size is not positive, a name is empty or comes twice, or ranks name other axes.
  DeviceMesh(std::shared_ptr<ProcessGroup> world, std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  // The group of all ranks of the mesh.
  const std::shared_ptr<ProcessGroup>& world() const { return world_; }
  // Error(kInvalid) that lists the axes, for another name; likewise below.
  const std::shared_ptr<ProcessGroup>& group(std::string_view axis) const;
  int size(std::string_view axis) const { return axes_[index_of(axis)].size; }
  // This rank's place along the axis, from 0: its rank in group(axis).
  int rank(std::string_view axis) const { return group(axis)->rank(); }
  bool has(std::string_view axis) const;

  // Collective over the mesh: the ranks that differ from this one along `axes` only, as a mesh with
  // these axes in this mesh's order. It shares the axes' groups and has a group of its own for all
  // its ranks, world().
  DeviceMesh sub_mesh(const std::vector<std::string>& axes) const;

  std::string describe() const { return describe_mesh(axes_, world_->hosts()); }

 private:
  DeviceMesh() = default;
  std::size_t index_of(std::string_view axis) const;

  std::shared_ptr<ProcessGroup> world_;  // owners: the user and this; likewise `groups_`
  std::vector<MeshAxis> axes_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;  // of each axis
};

}  // namespace paceline
