#include "paceline/planning/memory_plan.h"

#include <algorithm>
#include <map>

namespace paceline::planning {
namespace {

// Of a pass under stages 2 and 3 (parallel/fully_shard.h).
constexpr double kUnitsUnderWay = 4;

double divided(double all, double share, int parts) { return all * (1 - share + share / parts); }

// Of a layer, in a stage that begins with layer `first`.
double parameters_of(const LayerProfile& layer, const Way& way, std::size_t first) {
  const std::int64_t all = layer.parameters - (first == 0 ? layer.tied_parameters : 0);
  return divided(static_cast<double>(all), layer.divisible.parameters, way.parts);
}

double activations_of(const LayerProfile& layer, const Way& way) {
  return divided(layer.activation_bytes, layer.divisible.activations, way.parts);
}

RankMemory memory_of_rank(const JobProfile& profile, const Way& way, LayerRange stage,
                          double samples_at_once, double kept) {
  const double parameters = parameters_of_stage(profile, way, stage);
  const double replicas = way.replicas;
  const double gradients = parameters * profile.gradient_bytes;
  const bool divides_gradients = way.shard_stage >= 2 && way.replicas > 1;
  RankMemory memory;
  memory.parameters = way.shard_stage == 3 ? 0 : parameters * profile.parameter_bytes;
  memory.gradients = gradients / (divides_gradients ? replicas : 1);
  memory.optimizer = parameters * profile.optimizer_bytes / (way.shard_stage >= 1 ? replicas : 1);
  const bool is_one_pass = way.micro_batches == 1 && !divides_gradients;
  memory.activations =
      is_one_pass ? peak_of_pass(profile, way, stage, samples_at_once) - gradients : kept;
  memory.working = profile.working_bytes * samples_at_once;
  if (divides_gradients) memory.working += std::min(gradients, kUnitsUnderWay * profile.unit_bytes);
  memory.process = profile.process_bytes;
  return memory;
}

}  // namespace

double parameters_of_stage(const JobProfile& profile, const Way& way, LayerRange stage) {
  double sum = 0;
  for (std::size_t i = stage.begin; i < stage.end; ++i)
    sum += parameters_of(profile.layers[i], way, stage.begin);
  return sum;
}

double activations_of_stage(const JobProfile& profile, const Way& way, LayerRange stage) {
  double sum = 0;
  for (std::size_t i = stage.begin; i < stage.end; ++i)
    sum += activations_of(profile.layers[i], way);
  return sum;
}

double peak_of_pass(const JobProfile& profile, const Way& way, LayerRange stage, double samples) {
  double bytes = activations_of_stage(profile, way, stage) * samples, peak = bytes;
  for (std::size_t i = stage.end; i-- > stage.begin;) {
    bytes += parameters_of(profile.layers[i], way, stage.begin) * profile.gradient_bytes;
    peak = std::max(peak, bytes);
    bytes -= activations_of(profile.layers[i], way) * samples;
  }
  return peak;
}

MemoryPlan plan_memory(const JobProfile& profile, const Machine& machine, const Way& way,
                       double samples_at_once, const std::vector<LayerRange>& stages,
                       const std::vector<double>& kept) {
  const std::vector<int> host_of_stage = hosts_of_stages(way, machine);
  std::map<int, int> stages_on;  // by host
  for (const int host : host_of_stage) ++stages_on[host];
  std::map<int, double> ranks_of, copies_of;
  const int groups_a_host = place_of_replicas(way, machine).groups_a_host;
  MemoryPlan plan;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const int host = host_of_stage[stage];
    const RankMemory memory =
        memory_of_rank(profile, way, stages[stage], samples_at_once, kept[stage]);
    if (stage == 0 || memory.all() > plan.rank.all()) plan.rank = memory;
    ranks_of[host] += memory.all() * machine.ranks_a_host / stages_on[host];
    if (way.shard_stage < 3) continue;
    copies_of[host] += parameters_of_stage(profile, way, stages[stage]) * profile.parameter_bytes *
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
