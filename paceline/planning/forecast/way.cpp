#include "paceline/planning/forecast/way.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "paceline/planning/schedules/search.h"

namespace paceline::planning {
namespace {

// The placement on hosts of an axis whose members are `stride` ranks apart.
AxisPlace place(int ranks, int stride, const Machine& machine) {
  const int a_host = machine.ranks_per_host;
  const std::int64_t span = std::int64_t{ranks - 1} * stride;
  AxisPlace result{.ranks = ranks};
  result.hosts = stride >= a_host ? ranks : static_cast<int>(span / a_host) + 1;
  result.members = (ranks + result.hosts - 1) / result.hosts;
  result.groups_per_host = std::max(1, a_host / result.members);
  return result;
}

}  // namespace

std::string mesh_text(const Way& way) {
  const std::string stages = fmt::format("pp={}", way.stages);
  const std::string replicas = fmt::format("dp={}", way.replicas);
  return fmt::format("{},{},tp={}", way.stages_outside ? stages : replicas,
                     way.stages_outside ? replicas : stages, way.parts);
}

std::vector<std::string> flags_of(const Way& way) {
  std::vector<std::string> flags = {"--mesh", mesh_text(way)};
  if (way.stages > 1) {
    flags.insert(flags.end(), {"--schedule", way.schedule, "--micro-batches",
                               std::to_string(way.micro_batches)});
  }
  if (way.shard_stage > 0) flags.insert(flags.end(), {"--shard", std::to_string(way.shard_stage)});
  return flags;
}

AxisPlace place_of_replicas(const Way& way, const Machine& machine) {
  return place(way.replicas, way.parts * (way.stages_outside ? 1 : way.stages), machine);
}

AxisPlace place_of_parts(const Way& way, const Machine& machine) {
  return place(way.parts, 1, machine);
}

std::vector<int> hosts_of_stages(const Way& way, const Machine& machine) {
  const std::int64_t stride = std::int64_t{way.parts} * (way.stages_outside ? way.replicas : 1);
  std::vector<int> hosts;
  for (int stage = 0; stage < way.stages; ++stage)
    hosts.push_back(static_cast<int>(stage * stride / machine.ranks_per_host));
  return hosts;
}

double pass_of(const PassCost& cost, const LayerProfile& layer, const Way& way, double samples) {
  const double share = layer.divisible.time;
  return cost.fixed_s + cost.sample_s * samples * (1 - share + share / way.parts);
}

double gradient_add_seconds(const LayerProfile& layer, const Way& way) {
  const double share = layer.divisible.parameters;
  return layer.add_s * (1 - share + share / way.parts);
}

std::vector<LayerRange> cut_into_stages(const JobProfile& profile, const Way& way, double samples,
                                        const std::vector<int>& rank_of_stage) {
  const std::vector<LayerProfile>& layers = profile.layers;
  if (rank_of_stage.size() == 1) return {{0, layers.size()}};
  // The first layer of each block, and the block's cost. The layers that follow a block belong to
  // it; the first block also includes the layers before it.
  std::vector<std::size_t> begins;
  std::vector<double> costs;
  double before = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double seconds = pass_of(layers[i].forward, layers[i], way, samples) +
                           pass_of(layers[i].backward, layers[i], way, samples) +
                           gradient_add_seconds(layers[i], way);
    if (layers[i].is_block) {
      begins.push_back(begins.empty() ? 0 : i);
      costs.push_back(std::exchange(before, 0) + seconds);
    } else {
      (costs.empty() ? before : costs.back()) += seconds;
    }
  }
  begins.push_back(layers.size());
  std::vector<LayerRange> ranges;
  std::size_t block = 0;
  for (const int count : pipeline::split_by_cost(costs, rank_of_stage)) {
    const std::size_t end = block + static_cast<std::size_t>(count);
    ranges.push_back({begins[block], begins[end]});
    block = end;
  }
  return ranges;
}

std::string why_not(const Way& way, const JobProfile& profile, const Machine& machine,
                    std::int64_t global_batch) {
  if (way.num_ranks() != machine.world_size()) {
    return fmt::format("{} has {} ranks, but the machine has {}", mesh_text(way), way.num_ranks(),
                       machine.world_size());
  }
  if (profile.most_parts % way.parts != 0)
    return fmt::format("tp={} does not divide {} (heads)", way.parts, profile.most_parts);
  if (way.stages > 1 && profile.schedules.empty())
    return fmt::format("pp={}: the program has no pipelines", way.stages);
  if (way.stages > 1 && way.stages > profile.num_blocks())
    return fmt::format("pp={}: the model has {} blocks", way.stages, profile.num_blocks());
  if (way.stages > 1 && way.schedule == "interleaved-1f1b")
    return "interleaved-1f1b: the planner does not support several stages a rank";
  if (global_batch % way.replicas != 0)
    return fmt::format("dp={} does not divide the global batch {}", way.replicas, global_batch);
  if (global_batch / way.replicas % way.micro_batches != 0) {
    return fmt::format("{} micro-batches do not divide a replica's {} samples", way.micro_batches,
                       global_batch / way.replicas);
  }
  if (way.micro_batches < way.stages)
    return fmt::format("{} micro-batches are fewer than {} stages", way.micro_batches, way.stages);
  const auto& stages = profile.shard_stages;
  if (std::find(stages.begin(), stages.end(), way.shard_stage) == stages.end())
    return fmt::format("--shard {}: the program does not support it", way.shard_stage);
  return "";
}

}  // namespace paceline::planning
