#include "paceline/planning/forecast/step_forecast.h"

#include <algorithm>
#include <numeric>

#include "paceline/engine/core/check.h"
#include "paceline/planning/forecast/step_parts.h"
#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/schedule_checks.h"
#include "paceline/planning/schedules/search.h"
#include "paceline/planning/schedules/simulate.h"

namespace paceline::planning {
namespace {

constexpr int kTrialsOfSearch = 500;

}  // namespace

Forecaster::Forecaster(const JobProfile& profile, const Machine& machine, std::int64_t global_batch)
    : profile_(profile), machine_(machine), global_batch_(global_batch) {
  require_valid(profile_);
  check(global_batch > 0, "a global batch of {} samples; at least one is needed", global_batch);
}

Forecast Forecaster::forecast(const Way& way) {
  const std::string reason = why_not(way, profile_, machine_, global_batch_);
  check(reason.empty(), "{}", reason);
  Forecast forecast{.way = way, .samples_per_step = global_batch_};
  const Passes& of_step = passes(way);
  StepTimes& times = forecast.times;
  times.compute = of_step.compute;
  times.bubble = of_step.bubble;
  times.exchange = of_step.exchange;
  times.stragglers = machine_.stragglers * deviations_of_slowest(way.num_ranks()) * times.compute;
  times.other = profile_.data_s + profile_.other_s;
  for (const RankLayers& stages : of_step.ranks)
    times.optimizer = std::max(times.optimizer, optimizer_of(way, stages));
  add_gradient_exchange(forecast, of_step.ranks);
  forecast.memory =
      plan_memory(profile_, machine_, way, samples_at_once(way), of_step.ranks, of_step.kept);
  forecast.fits = forecast.memory.fits(machine_);
  add_failures(forecast);
  return forecast;
}

double Forecaster::samples_at_once(const Way& way) const {
  return static_cast<double>(global_batch_) / way.replicas / way.micro_batches;
}

// The slowdown of work that all ranks of a host do at the same time, if they have more threads than
// the host has cores.
double Forecaster::slowdown() const {
  if (machine_.cores_per_host <= 0) return 1;
  return std::max(1.0, profile_.threads * machine_.ranks_per_host / machine_.cores_per_host);
}

double Forecaster::exchange_of(const LayerProfile& layer, const Way& way) const {
  if (way.parts == 1 || layer.exchanges == 0) return 0;
  return layer.exchanges * all_reduce(layer.output_bytes * samples_at_once(way),
                                      place_of_parts(way, machine_), machine_.links)
                               .seconds();
}

const Forecaster::Passes& Forecaster::passes(const Way& way) {
  Way same_passes = way;
  same_passes.shard_stage = 0;
  if (way_of_passes_ != same_passes) {
    passes_ = way.stages == 1 ? plain_passes(way) : simulated_passes(way);
    way_of_passes_ = same_passes;
  }
  return passes_;
}

Forecaster::Passes Forecaster::plain_passes(const Way& way) const {
  Passes passes{.ranks = {{{0, profile_.layers.size()}}}};
  double adding = 0;
  for (const LayerProfile& layer : profile_.layers) {
    passes.compute += pass_of(layer.forward, layer, way, samples_at_once(way)) +
                      pass_of(layer.backward, layer, way, samples_at_once(way));
    passes.exchange += 2 * exchange_of(layer, way);
    adding += gradient_add_seconds(layer, way);
  }
  passes.compute =
      (passes.compute * way.micro_batches + adding * (way.micro_batches - 1)) * slowdown();
  passes.exchange *= way.micro_batches * slowdown();
  passes.kept = {activations_of_stage(profile_, way, passes.ranks[0][0]) * samples_at_once(way)};
  return passes;
}

pipeline::Costs Forecaster::costs_of(const Way& way, const std::vector<LayerRange>& stages,
                                     const std::vector<int>& rank_of_stage) const {
  const std::vector<int> hosts = hosts_of_stages(way, machine_);
  const auto host_of = [&](std::size_t stage) {
    return hosts[static_cast<std::size_t>(rank_of_stage[stage])];
  };
  const double samples = samples_at_once(way);
  pipeline::Costs costs;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const LayerRange range = stages[stage];
    double forward = 0, backward = 0, input_half = 0, weight_half = 0;
    for (std::size_t i = range.begin; i < range.end; ++i) {
      const LayerProfile& layer = profile_.layers[i];
      const double between = exchange_of(layer, way), adding = gradient_add_seconds(layer, way);
      const double back = pass_of(layer.backward, layer, way, samples);
      const auto half = [&](const std::optional<PassCost>& cost) {
        return cost ? pass_of(*cost, layer, way, samples) : back / 2;
      };
      forward += pass_of(layer.forward, layer, way, samples) + between;
      backward += back + adding + between;
      input_half += half(layer.input_half) + between;
      weight_half += half(layer.weight_half) + adding;
    }
    if (stage == 0) input_half = 0, weight_half = backward;  // no stage needs its input gradient
    pipeline::StageCosts each{
        .forward_s = forward,
        .input_gradient_s = input_half,
        .weight_gradient_s = weight_half,
        .backward_s = backward,
        .activation_bytes = activations_of_stage(profile_, way, range) * samples,
        .deferred_bytes = deferred_of_stage(profile_, way, range) * samples};
    if (stage + 1 < stages.size()) {
      const double bytes = profile_.layers[range.end - 1].output_bytes * samples;
      const int sharing = std::min(way.replicas * way.parts, machine_.ranks_per_host);
      each.transfer_s =
          message(bytes, host_of(stage) == host_of(stage + 1), sharing, machine_.links).seconds();
    }
    costs.stages.push_back(each);
  }
  return costs;
}

Forecaster::Passes Forecaster::simulated_passes(const Way& way) {
  ++num_simulations_;
  std::vector<std::vector<int>> layouts = {pipeline::looped_layout(way.stages, 1)};
  if (way.schedule == kSearched) {
    layouts = pipeline::possible_layouts(way.stages, profile_.num_blocks());
  }
  std::vector<std::vector<LayerRange>> cuts;
  std::vector<pipeline::Division> divisions;
  for (const std::vector<int>& layout : layouts) {
    cuts.push_back(cut_into_stages(profile_, way, samples_at_once(way), layout));
    divisions.push_back({.rank_of_stage = layout, .costs = costs_of(way, cuts.back(), layout)});
  }
  PipelineSchedule plan;
  std::size_t chosen = 0;
  if (way.schedule == kSearched) {
    pipeline::DivisionSearch search =
        pipeline::search_divisions(divisions, way.micro_batches, {.num_trials = kTrialsOfSearch});
    chosen = search.division;
    plan = std::move(search.found.schedule);
  } else {
    plan = pipeline_schedule(way.schedule, way.stages, way.micro_batches);
  }
  const pipeline::Costs& costs = divisions[chosen].costs;
  pipeline::ScheduleClock clock(plan.rank_of_stage, plan.num_micro_batches, costs);
  clock.run(plan.ranks);
  Passes passes{.ranks = std::vector<RankLayers>(static_cast<std::size_t>(way.stages)),
                .kept = clock.peak_bytes()};
  for (std::size_t stage = 0; stage < cuts[chosen].size(); ++stage) {
    const auto rank = static_cast<std::size_t>(plan.rank_of_stage[stage]);
    passes.ranks[rank].push_back(cuts[chosen][stage]);
  }
  // The time of the tensor-parallel exchanges, averaged over the pipeline's ranks.
  for (const LayerProfile& layer : profile_.layers)
    passes.exchange += 2 * exchange_of(layer, way) * way.micro_batches / way.stages;
  const double busy = std::accumulate(clock.busy_s().begin(), clock.busy_s().end(), 0.0);
  passes.compute = busy / way.stages - passes.exchange;
  passes.bubble = seconds_of(plan, costs, way, clock.seconds()) - passes.compute - passes.exchange;
  return passes;
}

double Forecaster::seconds_of(const PipelineSchedule& plan, const pipeline::Costs& costs,
                              const Way& way, double simulated_s) const {
  if (slowdown() <= 1) return simulated_s;
  // A host also runs ranks of other replicas and parts, which are not in the plan. So the plan's
  // ranks get only their share of its cores: on_first / slowdown() of them compute at full speed.
  const std::vector<int> hosts = hosts_of_stages(way, machine_);
  const auto on_first = std::count(hosts.begin(), hosts.end(), 0);
  return seconds_on_shared_cores(plan, costs, hosts, static_cast<double>(on_first) / slowdown());
}

double Forecaster::optimizer_of(const Way& way, const RankLayers& stages) const {
  const double num_shards = way.shard_stage >= 1 ? way.replicas : 1;
  return parameters_of_rank(profile_, way, stages) / num_shards *
         profile_.optimizer_s_per_parameter * slowdown();
}

void Forecaster::add_gradient_exchange(Forecast& forecast,
                                       const std::vector<RankLayers>& ranks) const {
  const Way& way = forecast.way;
  const AxisPlace place = place_of_replicas(way, machine_);
  const CostModel& links = machine_.links;
  const bool is_divided = way.shard_stage >= 2;
  const auto exchange = [&](double bytes) {
    return is_divided ? reduce_scatter(bytes, place, links) : all_reduce(bytes, place, links);
  };
  double tied_bytes = 0;
  for (const RankLayers& stages : ranks) {
    std::vector<GradientsOfLayer> layers;
    const bool ties_here = has_first_layer(stages);
    for (const LayerRange range : stages) {
      for (std::size_t i = range.begin; i < range.end; ++i) {
        const LayerProfile& layer = profile_.layers[i];
        const double share = layer.divisible.parameters;
        const auto exchanged =
            static_cast<double>(layer.parameters - (ties_here ? layer.tied_parameters : 0));
        const double backward =
            pass_of(layer.backward, layer, way, samples_at_once(way)) + exchange_of(layer, way);
        if (!ties_here) {
          tied_bytes += static_cast<double>(layer.tied_parameters) *
                        (1 - share + share / way.parts) * profile_.gradient_bytes;
        }
        // A pipeline exchanges gradients after its passes.
        layers.push_back({way.stages > 1 ? 0 : backward * slowdown(),
                          exchanged * (1 - share + share / way.parts) * profile_.gradient_bytes});
      }
    }
    if (way.replicas == 1) continue;
    double processor_s = 0;
    const ExposedExchange exposed = exposed_exchange(
        layers, is_divided ? profile_.unit_bytes : profile_.bucket_bytes, [&](double bytes) {
          const LinkTime time = exchange(bytes);
          processor_s += time.processor_s * slowdown();
          return time.wire_s;
        });
    LinkTime parameter_gather;
    if (way.shard_stage >= 1) {
      parameter_gather =
          all_gather(parameters_of_rank(profile_, way, stages) * profile_.parameter_bytes, place,
                     links, way.shard_stage == 3);
    }
    const double seconds = exposed.seconds + processor_s +
                           parameter_gather.processor_s * slowdown() + parameter_gather.wire_s;
    if (seconds < forecast.times.gradients) continue;
    forecast.times.gradients = seconds;
    forecast.hidden_s = exposed.whole_s - exposed.seconds;
  }
  if (tied_bytes > 0) {
    const std::vector<int> hosts = hosts_of_stages(way, machine_);
    const bool same_host = hosts.front() == hosts.back();
    const AxisPlace ends{
        .ranks = 2,
        .hosts = same_host ? 1 : 2,
        .members = same_host ? 2 : 1,
        .groups_per_host = std::min(way.replicas * way.parts, machine_.ranks_per_host)};
    forecast.times.gradients += all_reduce(tied_bytes, ends, links).seconds();
  }
}

void Forecaster::add_failures(Forecast& forecast) const {
  if (machine_.mtbf_s <= 0) return;
  const FailureCosts costs{.mtbf_s = machine_.mtbf_s / machine_.hosts,
                           .checkpoint_s = machine_.checkpoint_s,
                           .restart_s = machine_.restart_s};
  forecast.interval_s = machine_.interval_s > 0 ? machine_.interval_s : best_interval(costs);
  forecast.goodput = goodput(costs, forecast.interval_s);
}

}  // namespace paceline::planning
