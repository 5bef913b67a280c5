#include "paceline/training/pipeline/pipeline_division.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/picture.h"
#include "paceline/planning/schedules/schedule_checks.h"
#include "paceline/planning/schedules/search.h"
#include "paceline/training/pipeline/measure_layers.h"

namespace paceline {

struct PipelineDivision::Plan {
  std::vector<int> layers;  // number of layers of each stage
  PipelineSchedule schedule;
  pipeline::TimedSchedule timed;
  std::optional<pipeline::SearchCandidate> best_named = {};  // after a search, if one fits
};

namespace {

// The layouts among which the search chooses, or the one that the options ask for.
std::vector<std::vector<int>> layouts(const PipelineDivisionOptions& options, std::size_t layers) {
  if (options.schedule != "search" || options.stages_per_rank > 0)
    return {pipeline::looped_layout(options.num_ranks, std::max(1, options.stages_per_rank))};
  return pipeline::possible_layouts(options.num_ranks, static_cast<int>(layers));
}

pipeline::Picture drawn(GroupRef group, const pipeline::TimedSchedule& planned,
                        const PipelineStep& step, const std::string& title) {
  return {.title = title, .planned = planned, .measured = measured(group, step)};
}

}  // namespace

PipelineDivision::PipelineDivision(GroupRef group, const std::vector<PipelineStage>& layers,
                                   const PipelineStage::Tensors& inputs, const Pipeline::Loss& loss,
                                   const PipelineDivisionOptions& options) {
  const std::size_t count =
      options.num_layers > 0 ? static_cast<std::size_t>(options.num_layers) : layers.size();
  check(count == layers.size() || (layers.size() >= 2 && layers.size() <= 3 && count > 2),
        "pipeline division: {} layers were given for a model of {}; give all of them, or the "
        "first, one in the middle and the last",
        layers.size(), count);
  auto times = measure_layers(group, layers, inputs, loss);
  auto memory = measure_layer_memory(group, layers, inputs, loss);
  if (count != layers.size()) {
    times = of_all_layers(times, count);
    memory = of_all_layers(memory, count);
  }
  std::vector<pipeline::Division> divisions;
  for (const std::vector<int>& layout : layouts(options, count)) {
    const auto cut = pipeline::split_by_cost(seconds_of(times), layout);
    divisions.push_back({layout, cut, costs_of_stages(times, cut, memory)});
  }
  if (options.schedule != "search") {
    const int each = std::max(1, options.stages_per_rank);
    auto schedule =
        pipeline_schedule(options.schedule, options.num_ranks, options.num_micro_batches, each);
    auto timed = pipeline::simulate(schedule, divisions[0].costs);
    plan_ = std::make_shared<const Plan>(
        Plan{divisions[0].layers, std::move(schedule), std::move(timed)});
    return;
  }
  pipeline::SearchOptions search;
  if (options.max_bytes_per_rank > 0)
    search.limits.bytes_of_rank.assign(static_cast<std::size_t>(options.num_ranks),
                                       options.max_bytes_per_rank);
  const auto found = pipeline::search_divisions(divisions, options.num_micro_batches, search);
  Plan plan{divisions[found.division].layers, found.found.schedule,
            pipeline::simulate(found.found.schedule, divisions[found.division].costs)};
  if (found.best_named.fits) plan.best_named = found.best_named;
  plan_ = std::make_shared<const Plan>(std::move(plan));
}

const PipelineSchedule& PipelineDivision::schedule() const { return plan_->schedule; }
const std::vector<int>& PipelineDivision::layers() const { return plan_->layers; }
double PipelineDivision::seconds() const { return plan_->timed.seconds; }
double PipelineDivision::bubble_share() const { return plan_->timed.bubble_share(); }
double PipelineDivision::peak_bytes() const { return std::ranges::max(plan_->timed.peak_bytes); }

std::string PipelineDivision::best_named_schedule() const {
  if (!plan_->best_named) return "";
  return fmt::format("{} would take {:.1f} ms", plan_->best_named->name,
                     1e3 * plan_->best_named->seconds);
}

std::string PipelineDivision::picture(GroupRef group, const PipelineStep& measured,
                                      const std::string& title) const {
  return pipeline::to_svg(drawn(group, plan_->timed, measured, title));
}

std::string PipelineDivision::trace(GroupRef group, const PipelineStep& measured,
                                    const std::string& title) const {
  return pipeline::to_trace(drawn(group, plan_->timed, measured, title));
}

}  // namespace paceline
