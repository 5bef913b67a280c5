#include "paceline/training/train/hook_snapshot.h"

#include <string_view>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/objects.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline::train {
namespace {

constexpr std::string_view kShared = "shared.";
constexpr std::string_view kOwed = "owed.";

// The names and sizes of what `root` has.
optim::NamedTensors empty_like_those_of(ProcessGroup& group, const optim::NamedTensors& saved,
                                        int root) {
  auto list = nlohmann::json::array();
  for (const auto& [name, tensor] : saved) list.push_back({name, tensor.sizes().vec()});
  const auto agreed = parse_json(broadcast_object(group, json_text(list), root));
  optim::NamedTensors tensors;
  for (const auto& entry : agreed)
    tensors.emplace_back(entry[0], at::empty(entry[1].get<std::vector<std::int64_t>>()));
  return tensors;
}

}  // namespace

optim::NamedTensors gather_hook_state(ProcessGroup& group, const HookState& state,
                                      std::optional<int> root) {
  optim::NamedTensors all;
  for (const auto& [name, tensor] : state.shared)
    all.emplace_back(std::string(kShared) + name, tensor);
  for (const auto& [name, tensor] : state.owed) {
    const at::Tensor own = tensor.contiguous();
    const auto of_ranks = root ? gather(group, own, *root) : all_gather(group, own);
    std::vector<std::int64_t> sizes = own.sizes().vec();
    sizes.insert(sizes.begin(), group.world_size());
    const bool has_all = !root || group.rank() == *root;
    all.emplace_back(std::string(kOwed) + name, has_all ? at::stack(of_ranks) : at::empty(sizes));
  }
  return all;
}

HookState scatter_hook_state(ProcessGroup& group, const optim::NamedTensors& saved, int root,
                             optim::Words words) {
  HookState state{std::move(words), {}, {}};
  optim::NamedTensors all = empty_like_those_of(group, saved, root);
  if (group.rank() == root) all = saved;
  for (const auto& [name, tensor] : all) {
    broadcast(group, tensor, root);
    if (name.starts_with(kShared)) {
      state.shared.emplace_back(name.substr(kShared.size()), tensor);
      continue;
    }
    const bool is_same_world = tensor.size(0) == group.world_size();
    state.owed.emplace_back(
        name.substr(kOwed.size()),
        is_same_world ? tensor[group.rank()] : tensor.to(at::kDouble).mean(0).to(at::kFloat));
  }
  return state;
}

}  // namespace paceline::train
