#include "paceline/training/parallel/replica_check.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "paceline/engine/collectives/group/objects.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

std::string describe(const NamedParameter& parameter) {
  const c10::Device device = parameter.tensor.device();
  return fmt::format(
      "{} {} [{}] strides [{}]{}{}", parameter.name, c10::toString(parameter.tensor.scalar_type()),
      fmt::join(parameter.tensor.sizes(), ", "), fmt::join(parameter.tensor.strides(), ", "),
      device.is_cpu() ? "" : " on " + c10::DeviceTypeName(device.type(), true),
      parameter.tensor.requires_grad() ? "" : " frozen");
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

void require_same_parameters(ProcessGroup& group, const std::vector<NamedParameter>& parameters) {
  std::string mine;
  for (const auto& parameter : parameters) mine += describe(parameter) + "\n";
  const auto texts = all_gather_object(group, mine);
  const auto first = split_lines(texts[0]);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const auto other = split_lines(texts[rank]);
    for (std::size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
      check(first[i] == other[i],
            "{}: the ranks do not have the same model: parameter {} is '{}' on {} and "
            "'{}' on {}",
            group.self(), i, first[i], group.name_of_member(0), other[i],
            group.name_of_member(rank));
    }
    check(first.size() == other.size(),
          "{}: the ranks do not have the same model: {} has {} parameters, {} has {}", group.self(),
          group.name_of_member(0), first.size(), group.name_of_member(rank), other.size());
  }
}

c10::Device one_device_of(const std::vector<NamedParameter>& parameters, int rank,
                          const BackendChoice& choice) {
  const NamedParameter& first = parameters.front();
  const c10::Device device = first.tensor.device();
  for (const NamedParameter& parameter : parameters) {
    check(parameter.tensor.device() == device,
          "rank {}: parameter {} is on {} and parameter {} on {}; a replica must be on one device",
          rank, first.name, device.str(), parameter.name, parameter.tensor.device().str());
  }
  require_backend_for(device, choice, fmt::format("rank {}: parameter {}", rank, first.name));
  return device;
}

}  // namespace paceline
