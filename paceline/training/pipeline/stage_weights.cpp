#include "paceline/training/pipeline/stage_weights.h"

#include <cstddef>
#include <sstream>
#include <vector>

#include <ATen/ATen.h>

#include "paceline/training/tensor/objects.h"

namespace paceline {
namespace {

constexpr ObjectOptions kAnySize{.max_bytes = std::size_t{1} << 40};

}  // namespace

std::map<std::string, at::Tensor> gather_stages(ProcessGroup& group,
                                                const std::map<std::string, at::Tensor>& own) {
  std::map<std::string, at::Tensor> all;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    std::string names;
    for (const auto& [name, tensor] : own) names += name + '\n';
    std::istringstream lines(broadcast_object(group, names, rank));
    for (std::string name; std::getline(lines, name);) {
      std::vector<at::Tensor> sent;
      if (rank == group.rank()) sent.push_back(own.at(name).detach());
      const auto received = broadcast_object(group, sent, rank, kAnySize);
      all.emplace(name, rank == group.rank() ? sent.front().clone() : received.at(0));
    }
  }
  return all;
}

}  // namespace paceline
