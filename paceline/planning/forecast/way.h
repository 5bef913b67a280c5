#pragma once

// One way to divide a job among ranks: a mesh of replicas (dp), of ranks that divide layers (tp)
// and of stages (pp), the state that replicas divide (the stage of fully_shard()), and the
// pipeline's schedule; and the placement of an axis's ranks on hosts.
//
// Thread safety: values and pure functions.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/planning/forecast/job_profile.h"
#include "paceline/planning/forecast/machine.h"

namespace paceline::planning {

struct Way {
  int replicas = 1;  // dp
  int parts = 1;     // tp
  int stages = 1;    // pp; if `schedule` is kSearched: pipeline ranks, each with one or more stages
  // True: ranks are numbered along the axes pp, dp, tp, the last of which varies fastest. False:
  // along dp, pp, tp.
  bool stages_outside = true;
  int shard_stage = 0;            // of fully_shard(), 0 to 3
  std::string schedule = "1f1b";  // or kSearched
  int micro_batches = 1;

  int num_ranks() const { return replicas * parts * stages; }
  bool operator==(const Way&) const = default;
};

// The mesh in the form that `--mesh` takes, such as "pp=2,dp=4,tp=2".
std::string mesh_text(const Way& way);
// The way as flags for a program: "--mesh pp=2,dp=4,tp=1 --schedule 1f1b --micro-batches 8".
std::vector<std::string> flags_of(const Way& way);

// The placement of the ranks of one axis on hosts, equal for all groups of the axis.
struct AxisPlace {
  int ranks = 1;            // ranks of a group
  int hosts = 1;            // hosts of a group
  int members = 1;          // ranks of a group on one host
  int groups_per_host = 1;  // groups with members on one host
};
AxisPlace place_of_replicas(const Way& way, const Machine& machine);
AxisPlace place_of_parts(const Way& way, const Machine& machine);
// The host of the first rank of each stage.
std::vector<int> hosts_of_stages(const Way& way, const Machine& machine);

// The layers [begin, end).
struct LayerRange {
  std::size_t begin = 0, end = 0;
};
// The layers of each stage, divided as in the training program (pipeline::split_by_cost()), by the
// costs of the blocks for passes of `samples` samples. `rank_of_stage`: the pipeline rank of each
// stage. Requires: at most as many stages as blocks, or one stage.
std::vector<LayerRange> cut_into_stages(const JobProfile& profile, const Way& way, double samples,
                                        const std::vector<int>& rank_of_stage);
// The layers that one pipeline rank holds, a range for each of its stages.
using RankLayers = std::vector<LayerRange>;

// The seconds of a pass of `samples` samples through a rank's part of the layer, without exchanges.
double pass_of(const PassCost& cost, const LayerProfile& layer, const Way& way, double samples);
// The seconds to add the gradients of a rank's part of the layer to those of another micro-batch.
double gradient_add_seconds(const LayerProfile& layer, const Way& way);

// The reason why this way is not possible for the job, machine and global batch; empty if it is.
std::string why_not(const Way& way, const JobProfile& profile, const Machine& machine,
                    std::int64_t global_batch);

}  // namespace paceline::planning
