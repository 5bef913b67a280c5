#include "paceline/planning/memory_plan.h"

#include <algorithm>
#include <map>

namespace paceline::planning {
namespace {

// Of a pass under stages 2 and 3 (parallel/fully_shard.h).
constexpr double kUnitsUnderWay = 4;

RankMemory memory_of_rank(const JobProfile& profile, const Way& way, int stage,
                          double samples_at_once, double kept) {
  const double parameters = parameters_of_stage(profile, way, stage);
  const double replicas = way.replicas;
  const double gradients = parameters * profile.gradient_bytes;
  const double divided = way.shard_stage >= 2 && way.replicas > 1 ? replicas : 1;
  RankMemory memory;
  memory.parameters = way.shard_stage == 3 ? 0 : parameters * profile.parameter_bytes;
  memory.gradients = gradients / divided;
  memory.optimizer = parameters * profile.optimizer_bytes / (way.shard_stage >= 1 ? replicas : 1);
  memory.activations = kept;
  memory.working = profile.working_bytes * samples_at_once;
  if (divided > 1) memory.working += std::min(gradients, kUnitsUnderWay * profile.unit_bytes);
  memory.process = profile.process_bytes;
  return memory;
}

}  // namespace

double parameters_of_stage(const JobProfile& profile, const Way& way, int stage) {
  const LayerRange range = layers_of_stage(profile, stage, way.stages);
  double sum = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const LayerProfile& layer = profile.layers[i];
    const double share = layer.divisible.parameters;
    const auto all =
        static_cast<double>(layer.parameters - (range.begin == 0 ? layer.tied_parameters : 0));
    sum += all * (1 - share + share / way.parts);
  }
  return sum;
}

double activations_of_stage(const JobProfile& profile, const Way& way, int stage) {
  const LayerRange range = layers_of_stage(profile, stage, way.stages);
  double sum = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const double share = profile.layers[i].divisible.activations;
    sum += profile.layers[i].activation_bytes * (1 - share + share / way.parts);
  }
  return sum;
}

MemoryPlan plan_memory(const JobProfile& profile, const Machine& machine, const Way& way,
                       double samples_at_once, const std::vector<double>& kept) {
  const std::vector<int> host_of_stage = hosts_of_stages(way, machine);
  std::map<int, int> stages_on;  // by host
  for (const int host : host_of_stage) ++stages_on[host];
  std::map<int, double> ranks_of, copies_of;
  const int groups_a_host = place_of_replicas(way, machine).groups_a_host;
  MemoryPlan plan;
  for (int stage = 0; stage < way.stages; ++stage) {
    const auto index = static_cast<std::size_t>(stage);
    const int host = host_of_stage[index];
    const RankMemory memory = memory_of_rank(profile, way, stage, samples_at_once, kept[index]);
    if (stage == 0 || memory.all() > plan.rank.all()) plan.rank = memory;
    ranks_of[host] += memory.all() * machine.ranks_a_host / stages_on[host];
    if (way.shard_stage < 3) continue;
    copies_of[host] += parameters_of_stage(profile, way, stage) * profile.parameter_bytes *
                       groups_a_host / stages_on[host];
  }
  for (const auto& [host, bytes] : ranks_of) {
    const double copy = copies_of[host] + profile.library_bytes;
    if (bytes + copy <= plan.host) continue;
    plan.host = bytes + copy;
    plan.host_copy = copy;
  }
  return plan;
}

}  // namespace paceline::planning
