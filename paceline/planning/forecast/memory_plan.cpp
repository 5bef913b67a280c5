#include "paceline/planning/forecast/memory_plan.h"

#include <algorithm>
#include <map>

namespace paceline::planning {
namespace {

// The most units whose gradients wait for their exchange at once, if gradients are divided
// (training/parallel/fully_shard.h).
constexpr double kUnitsUnderWay = 4;

// Returns the size of a part of `all`: a part has 1/`parts` of the divided share and all of the
// rest.
double divided(double all, double share, int parts) { return all * (1 - share + share / parts); }

// Returns the number of a layer's parameters that a rank has. `beside_first`: the rank also has the
// first layer, and so the tied parameters.
double parameters_of(const LayerProfile& layer, const Way& way, bool beside_first) {
  const std::int64_t all = layer.parameters - (beside_first ? layer.tied_parameters : 0);
  return divided(static_cast<double>(all), layer.divisible.parameters, way.parts);
}

// Returns the bytes of activations that a rank keeps of a layer for one sample.
double activations_of(const LayerProfile& layer, const Way& way) {
  return divided(layer.activation_bytes, layer.divisible.activations, way.parts);
}

// Returns the number of parts into which gradients are divided: 1 with a pipeline, whose gradients
// are whole until the end of the step.
int gradient_parts(const Way& way) {
  return way.shard_stage >= 2 && way.stages == 1 ? way.replicas : 1;
}

// Returns how many of `gradients` bytes are divided gradients that wait for their exchange.
double units_under_way(const JobProfile& profile, const Way& way, double gradients) {
  if (gradient_parts(way) == 1) return 0;
  return std::min(gradients, kUnitsUnderWay * profile.unit_bytes);
}

// Returns the number of bytes by which the gradients of one micro-batch exceed the activations that
// they replace, in that stage of the rank where this number is largest.
double gradients_of_pass(const JobProfile& profile, const Way& way, const RankLayers& stages,
                         double samples) {
  Way whole = way;
  whole.shard_stage = 0;
  double most = 0;
  for (const LayerRange stage : stages) {
    most = std::max(most, peak_of_pass(profile, whole, stage, samples) -
                              activations_of_stage(profile, way, stage) * samples);
  }
  return most;
}

RankMemory memory_of_rank(const JobProfile& profile, const Way& way, const RankLayers& stages,
                          double samples_at_once, double kept) {
  const double parameters = parameters_of_rank(profile, way, stages);
  const double replicas = way.replicas;
  const double gradients = parameters * profile.gradient_bytes;
  RankMemory memory;
  memory.parameters = way.shard_stage == 3 ? 0 : parameters * profile.parameter_bytes;
  memory.gradients = gradients / gradient_parts(way);
  memory.optimizer = parameters * profile.optimizer_bytes / (way.shard_stage >= 1 ? replicas : 1);
  if (way.stages > 1) {
    memory.activations = kept + gradients_of_pass(profile, way, stages, samples_at_once);
  } else if (way.micro_batches > 1) {
    memory.activations = kept + units_under_way(profile, way, gradients);
  } else {
    memory.activations =
        peak_of_pass(profile, way, stages.front(), samples_at_once) - memory.gradients;
  }
  memory.working = profile.working_bytes * samples_at_once;
  memory.process = profile.process_bytes;
  return memory;
}

}  // namespace

bool has_first_layer(const RankLayers& stages) {
  return std::any_of(stages.begin(), stages.end(),
                     [](const LayerRange& stage) { return stage.begin == 0; });
}

double parameters_of_rank(const JobProfile& profile, const Way& way, const RankLayers& stages) {
  const bool beside_first = has_first_layer(stages);
  double sum = 0;
  for (const LayerRange stage : stages) {
    for (std::size_t i = stage.begin; i < stage.end; ++i)
      sum += parameters_of(profile.layers[i], way, beside_first);
  }
  return sum;
}

double deferred_of_stage(const JobProfile& profile, const Way& way, LayerRange stage) {
  if (stage.begin == 0) return activations_of_stage(profile, way, stage);
  double sum = 0;
  for (std::size_t i = stage.begin; i < stage.end; ++i) {
    const LayerProfile& layer = profile.layers[i];
    sum += divided(layer.deferred(), layer.divisible.activations, way.parts);
  }
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
    gradients += parameters_of(profile.layers[i], way, stage.begin == 0) * profile.gradient_bytes;
    peak = std::max(
        peak, kept + gradients / gradient_parts(way) + units_under_way(profile, way, gradients));
    kept -= activations_of(profile.layers[i], way) * samples;
  }
  return peak;
}

MemoryPlan plan_memory(const JobProfile& profile, const Machine& machine, const Way& way,
                       double samples_at_once, const std::vector<RankLayers>& ranks,
                       const std::vector<double>& kept) {
  const std::vector<int> host_of_rank = hosts_of_stages(way, machine);
  std::map<int, int> num_pipeline_ranks;  // [host]
  for (const int host : host_of_rank) ++num_pipeline_ranks[host];
  std::map<int, double> rank_bytes, copy_bytes;  // [host]: of all its ranks; of their shared copies
  const int groups_per_host = place_of_replicas(way, machine).groups_per_host;
  MemoryPlan plan;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const int host = host_of_rank[rank];
    const RankMemory memory =
        memory_of_rank(profile, way, ranks[rank], samples_at_once, kept[rank]);
    if (rank == 0 || memory.all() > plan.rank.all()) plan.rank = memory;
    rank_bytes[host] += memory.all() * machine.ranks_per_host / num_pipeline_ranks[host];
    if (way.shard_stage < 3) continue;
    copy_bytes[host] += parameters_of_rank(profile, way, ranks[rank]) * profile.parameter_bytes *
                        groups_per_host / num_pipeline_ranks[host];
  }
  for (const auto& [host, bytes] : rank_bytes) {
    const double copy = copy_bytes[host] + profile.library_bytes;
    if (bytes + copy <= plan.host) continue;
    plan.host = bytes + copy;
    plan.host_copy = copy;
  }
  return plan;
}

}  // namespace paceline::planning
