#include "paceline/planning/step_forecast.h"

#include <algorithm>
#include <numeric>

#include "paceline/core/check.h"
#include "paceline/planning/goodput.h"
#include "paceline/planning/gradient_overlap.h"
#include "paceline/planning/link_time.h"
#include "paceline/planning/shared_cores.h"
#include "paceline/schedules/named_plans.h"
#include "paceline/schedules/plan_clock.h"

namespace paceline::planning {

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
  times.stragglers = machine_.stragglers * slowest_of(way.num_ranks()) * times.compute;
  times.other = profile_.data_s + profile_.other_s;
  for (const LayerRange stage : of_step.stages)
    times.optimizer = std::max(times.optimizer, optimizer_of(way, stage));
  add_gradients(forecast, of_step.stages);
  forecast.memory =
      plan_memory(profile_, machine_, way, samples_at_once(way), of_step.stages, of_step.kept);
  forecast.fits = forecast.memory.fits(machine_);
  add_failures(forecast);
  return forecast;
}

double Forecaster::samples_at_once(const Way& way) const {
  return static_cast<double>(global_batch_) / way.replicas / way.micro_batches;
}

// What all ranks of a host do at once takes longer where they have more threads than there are
// cores.
double Forecaster::slowdown() const {
  if (machine_.cores_a_host <= 0) return 1;
  return std::max(1.0, profile_.threads * machine_.ranks_a_host / machine_.cores_a_host);
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
  Passes passes{.stages = cut_into_stages(profile_, way, samples_at_once(way))};
  for (const LayerProfile& layer : profile_.layers) {
    passes.compute += pass_of(layer.forward, layer, way, samples_at_once(way)) +
                      pass_of(layer.backward, layer, way, samples_at_once(way));
    passes.exchange += 2 * exchange_of(layer, way);
  }
  passes.compute *= way.micro_batches * slowdown();
  passes.exchange *= way.micro_batches * slowdown();
  passes.kept = {activations_of_stage(profile_, way, passes.stages[0]) * samples_at_once(way)};
  return passes;
}

Forecaster::Passes Forecaster::simulated_passes(const Way& way) {
  ++num_simulations_;
  const std::vector<int> host_of_stage = hosts_of_stages(way, machine_);
  const std::vector<LayerRange> stages = cut_into_stages(profile_, way, samples_at_once(way));
  pipeline::Costs costs;
  double compute = 0, exchange = 0;  // of one micro-batch, all stages
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const LayerRange range = stages[stage];
    double forward = 0, backward = 0, input_half = 0, weight_half = 0;
    for (std::size_t i = range.begin; i < range.end; ++i) {
      const LayerProfile& layer = profile_.layers[i];
      const double between = exchange_of(layer, way);
      const double back = pass_of(layer.backward, layer, way, samples_at_once(way));
      forward += pass_of(layer.forward, layer, way, samples_at_once(way)) + between;
      backward += back + between;
      input_half += back * layer.input_half + between;
      weight_half += back * layer.weight_half;
      exchange += 2 * between;
    }
    compute += forward + backward;
    pipeline::StageCosts each{.forward_s = forward,
                              .input_gradient_s = input_half,
                              .weight_gradient_s = weight_half,
                              .backward_s = backward};
    each.activation_bytes = each.deferred_bytes =
        activations_of_stage(profile_, way, range) * samples_at_once(way);
    if (stage + 1 < stages.size()) {
      const double bytes = profile_.layers[range.end - 1].output_bytes * samples_at_once(way);
      const int sharing = std::min(way.replicas * way.parts, machine_.ranks_a_host);
      each.transfer_s =
          message(bytes, host_of_stage[stage] == host_of_stage[stage + 1], sharing, machine_.links)
              .seconds();
    }
    costs.stages.push_back(each);
  }
  const pipeline::Plan plan = pipeline::make_plan(
      way.schedule, {.num_ranks = way.stages, .num_micro_batches = way.micro_batches});
  pipeline::PlanClock clock(plan.rank_of_stage, plan.num_micro_batches, costs);
  clock.run(plan.ranks);
  double seconds = clock.seconds();
  if (slowdown() > 1) {
    // Each rank of the plan stands for those of other replicas and parts on its host.
    const auto on_first = std::count(host_of_stage.begin(), host_of_stage.end(), 0);
    const double cores = static_cast<double>(on_first) / slowdown();
    seconds = seconds_on_shared_cores(plan, costs, host_of_stage, cores);
  }
  const double share = way.micro_batches / static_cast<double>(way.stages);  // of the mean rank
  Passes passes{
      .stages = stages, .compute = (compute - exchange) * share, .exchange = exchange * share};
  passes.bubble = seconds - passes.compute - passes.exchange;
  passes.kept = clock.peak_bytes();
  return passes;
}

double Forecaster::optimizer_of(const Way& way, LayerRange stage) const {
  const double divided = way.shard_stage >= 1 ? way.replicas : 1;
  return parameters_of_stage(profile_, way, stage) / divided * profile_.optimizer_s_a_parameter *
         slowdown();
}

void Forecaster::add_gradients(Forecast& forecast, const std::vector<LayerRange>& stages) const {
  const Way& way = forecast.way;
  const AxisPlace place = place_of_replicas(way, machine_);
  const CostModel& links = machine_.links;
  const bool is_divided = way.shard_stage >= 2;
  const auto exchange = [&](double bytes) {
    return is_divided ? reduce_scatter(bytes, place, links) : all_reduce(bytes, place, links);
  };
  double tied_bytes = 0;
  for (const LayerRange range : stages) {
    std::vector<GradientsOfLayer> layers;
    for (std::size_t i = range.begin; i < range.end; ++i) {
      const LayerProfile& layer = profile_.layers[i];
      const double share = layer.divisible.parameters;
      const auto own =
          static_cast<double>(layer.parameters - (range.begin == 0 ? layer.tied_parameters : 0));
      const double backward =
          pass_of(layer.backward, layer, way, samples_at_once(way)) + exchange_of(layer, way);
      if (range.begin > 0) {
        tied_bytes += static_cast<double>(layer.tied_parameters) * (1 - share + share / way.parts) *
                      profile_.gradient_bytes;
      }
      // A pipeline's exchange comes after its passes.
      layers.push_back({way.stages > 1 ? 0 : backward * slowdown(),
                        own * (1 - share + share / way.parts) * profile_.gradient_bytes});
    }
    if (way.replicas == 1) continue;
    double processor = 0;
    const ExposedExchange exposed = exposed_exchange(
        layers, is_divided ? profile_.unit_bytes : profile_.bucket_bytes, [&](double bytes) {
          const LinkTime time = exchange(bytes);
          processor += time.processor_s * slowdown();
          return time.wire_s;
        });
    LinkTime updated;
    if (way.shard_stage >= 1) {
      updated = all_gather(parameters_of_stage(profile_, way, range) * profile_.parameter_bytes,
                           place, links, way.shard_stage == 3);
    }
    const double seconds =
        exposed.seconds + processor + updated.processor_s * slowdown() + updated.wire_s;
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
        .groups_a_host = std::min(way.replicas * way.parts, machine_.ranks_a_host)};
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
