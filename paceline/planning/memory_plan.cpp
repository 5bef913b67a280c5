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

// Into how many parts gradients are divided. A pipeline's are whole until the end of the step.
int gradient_parts(const Way& way) {
  return way.shard_stage >= 2 && way.stages == 1 ? way.replicas : 1;
}

// Of divided gradients those that wait for their exchange, of so many that are there.
double units_under_way(const JobProfile& profile, const Way& way, double gradients) {
  if (gradient_parts(way) == 1) return 0;
  return std::min(gradients, kUnitsUnderWay * profile.unit_bytes);
}

RankMemory memory_of_rank(const JobProfile& profile, const Way& way, LayerRange stage,
                          double samples_at_once, double kept) {
  const double parameters = parameters_of_stage(profile, way, stage);
  const double replicas = way.replicas;
  const double gradients = parameters * profile.gradient_bytes;
  RankMemory memory;
  memory.parameters = way.shard_stage == 3 ? 0 : parameters * profile.parameter_bytes;
  memory.gradients = gradients / gradient_parts(way);
  memory.optimizer = parameters * profile.optimizer_bytes / (way.shard_stage >= 1 ? replicas : 1);
  memory.activations = way.micro_batches == 1
                           ? peak_of_pass(profile, way, stage, samples_at_once) - memory.gradients
                           : kept + units_under_way(profile, way, gradients);
  memory.working = profile.working_bytes * samples_at_once;
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
  double kept = activations_of_stage(profile, way, stage) * samples, gradients = 0;
  double peak = kept;
  for (std::size_t i = stage.end; i-- > stage.begin;) {
    gradients += parameters_of(profile.layers[i], way, stage.begin) * profile.gradient_bytes;
    peak = std::max(
        peak, kept + gradients / gradient_parts(way) + units_under_way(profile, way, gradients));
    kept -= activations_of(profile.layers[i], way) * samples;
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
