#include "paceline/engine/collectives/group/device_mesh.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include <fmt/ranges.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/option_text.h"

namespace paceline {
namespace {

bool is_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

std::vector<std::string> names_of(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : axes) names.push_back(axis.name);
  return names;
}

void require_axes(const std::vector<MeshAxis>& axes) {
  check(!axes.empty(), "mesh: no axes; name at least one, as in dp=2");
  std::set<std::string> seen;
  for (const MeshAxis& axis : axes) {
    check(is_name(axis.name), "mesh: '{}' is not a name for an axis; use letters and digits",
          axis.name);
    check(axis.size > 0, "mesh: axis {} has size {}; it must be at least 1", axis.name, axis.size);
    check(seen.insert(axis.name).second, "mesh: axis {} occurs twice", axis.name);
  }
}

// The product of the sizes; 2^31 if it is larger, because no group has that many ranks.
std::int64_t ranks_of(const std::vector<MeshAxis>& axes) {
  constexpr std::int64_t kTooMany = std::int64_t{1} << 31;
  std::int64_t product = 1;
  for (const MeshAxis& axis : axes) product = std::min(kTooMany, product * axis.size);
  return product;
}

// The difference between the rank numbers of neighbours along the axis.
int stride_of(const std::vector<MeshAxis>& axes, std::size_t index) {
  int stride = 1;
  for (std::size_t i = index + 1; i < axes.size(); ++i) stride *= axes[i].size;
  return stride;
}

int place_of(const std::vector<MeshAxis>& axes, int rank, std::size_t index) {
  return rank / stride_of(axes, index) % axes[index].size;
}

// Compares the axes of all ranks; a difference is an error on every rank.
void require_same_axes(ProcessGroup& world, const std::vector<MeshAxis>& axes) {
  const auto all = all_gather_object(world, to_string(axes));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    check(all[rank] == all.front(),
          "mesh: {} has {}, {} has {}; all ranks must make the same meshes in the same order",
          rank_name(0, world.world_ranks()[0]), all.front(),
          rank_name(static_cast<int>(rank), world.world_ranks()[rank]), all[rank]);
  }
}

// Makes the group of the ranks that differ from this rank only along the axes with indices `kept`.
std::shared_ptr<ProcessGroup> group_along(ProcessGroup& world, const std::vector<MeshAxis>& axes,
                                          const std::set<std::size_t>& kept,
                                          const std::string& label) {
  int color = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (!kept.contains(i)) color = color * axes[i].size + place_of(axes, world.rank(), i);
  }
  return world.split(color, world.rank(), {}, label);
}

// Whether a group along the axis has ranks of several hosts.
bool crosses_hosts(const std::vector<MeshAxis>& axes, std::size_t index, const Hosts& hosts) {
  const int stride = stride_of(axes, index);
  for (int rank = 0; rank < hosts.world_size(); ++rank) {
    const int first = rank - place_of(axes, rank, index) * stride;
    if (hosts.host_of[static_cast<std::size_t>(rank)] !=
        hosts.host_of[static_cast<std::size_t>(first)])
      return true;
  }
  return false;
}

// The hosts of consecutive ranks: "host 0" or "hosts 0, 1".
std::string hosts_text(const Hosts& hosts, int first, int count) {
  std::set<int> numbers;
  for (int rank = first; rank < first + count; ++rank)
    numbers.insert(hosts.host_of[static_cast<std::size_t>(rank)]);
  return fmt::format("{} {}", numbers.size() == 1 ? "host" : "hosts", fmt::join(numbers, ", "));
}

std::string row_text(const std::vector<MeshAxis>& axes, const Hosts& hosts, int first) {
  const MeshAxis& last = axes.back();
  std::string row = "  " + hosts_text(hosts, first, last.size);
  for (std::size_t i = 0; i + 1 < axes.size(); ++i)
    row += fmt::format("  {} {}", axes[i].name, place_of(axes, first, i));
  row += fmt::format("  {}: rank", last.name);
  for (int place = 0; place < last.size; ++place) row += fmt::format(" {}", first + place);
  return row + "\n";
}

std::string hint(const std::vector<MeshAxis>& axes, const Hosts& hosts) {
  const std::size_t last = axes.size() - 1;
  if (!crosses_hosts(axes, last, hosts)) return {};
  std::size_t fewest = hosts.members.front().size();
  for (const auto& members : hosts.members) fewest = std::min(fewest, members.size());
  return fmt::format(
      "hint: {} crosses hosts; a size that divides the {} ranks of a host, and ranks numbered host "
      "by host, keep it in shared memory\n",
      axes[last].name, fewest);
}

}  // namespace

std::vector<MeshAxis> parse_mesh(std::string_view text) {
  std::vector<MeshAxis> axes;
  for (const std::string_view part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string_view number =
        equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    const auto size = parse_number<int>(number);
    check(size.has_value(), "mesh: '{}' in '{}' is not NAME=SIZE; write, for example, dp=2,tp=1",
          part, text);
    axes.push_back({std::string(part.substr(0, equals)), *size});
  }
  require_axes(axes);
  return axes;
}

std::string to_string(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> parts;
  for (const MeshAxis& axis : axes) parts.push_back(fmt::format("{}={}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(parts, ","));
}

std::string DeviceMesh::describe() const { return detail::describe_mesh(axes_, world_->hosts()); }

std::string detail::describe_mesh(const std::vector<MeshAxis>& axes, const Hosts& hosts) {
  require_axes(axes);
  check(ranks_of(axes) == hosts.world_size(), "mesh: {} has {} ranks, the hosts have {}",
        to_string(axes), ranks_of(axes), hosts.world_size());
  std::string text = fmt::format("mesh {}: {} {} on {} {}\n", to_string(axes), hosts.world_size(),
                                 hosts.world_size() == 1 ? "rank" : "ranks", hosts.size(),
                                 hosts.size() == 1 ? "host" : "hosts");
  for (int first = 0; first < hosts.world_size(); first += axes.back().size)
    text += row_text(axes, hosts, first);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].size == 1) continue;
    text +=
        fmt::format("{}: {} ranks, {} apart, {}\n", axes[i].name, axes[i].size, stride_of(axes, i),
                    crosses_hosts(axes, i, hosts) ? "across hosts" : "within a host");
  }
  return text + hint(axes, hosts);
}

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> world, std::vector<MeshAxis> axes)
    : world_(std::move(world)), axes_(std::move(axes)) {
  check(world_ != nullptr && world_->is_member(), "mesh: this rank is not a member of the group");
  require_same_axes(*world_, axes_);
  require_axes(axes_);
  check(ranks_of(axes_) == world_->world_size(),
        "mesh: {} is for {} ranks; group {} has {}; make the sizes multiply to that",
        to_string(axes_), ranks_of(axes_), world_->name(), world_->world_size());
  for (std::size_t i = 0; i < axes_.size(); ++i)
    groups_.push_back(group_along(*world_, axes_, {i}, axes_[i].name));
}

std::size_t DeviceMesh::index_of(std::string_view axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return i;
  }
  fail(ErrorCode::kInvalid, "mesh: no axis '{}'; there are {}", axis,
       fmt::join(names_of(axes_), ", "));
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::group(std::string_view axis) const {
  return groups_[index_of(axis)];
}

bool DeviceMesh::has(std::string_view axis) const {
  return std::any_of(axes_.begin(), axes_.end(),
                     [&](const MeshAxis& own) { return own.name == axis; });
}

DeviceMesh DeviceMesh::sub_mesh(const std::vector<std::string>& axes) const {
  std::set<std::size_t> kept;
  for (const std::string& axis : axes)
    check(kept.insert(index_of(axis)).second, "mesh: axis {} occurs twice", axis);
  check(!kept.empty(), "mesh: a sub-mesh needs at least one axis");
  DeviceMesh mesh;
  for (const std::size_t i : kept) {
    mesh.axes_.push_back(axes_[i]);
    mesh.groups_.push_back(groups_[i]);
  }
  mesh.world_ =
      group_along(*world_, axes_, kept, fmt::format("{}", fmt::join(names_of(mesh.axes_), "_")));
  return mesh;
}

}  // namespace paceline
