#pragma once

// One way to divide a job among ranks: a mesh of replicas (dp), of ranks that divide layers (tp)
// and of stages (pp), what replicas divide (the stage of fully_shard()), and the pipeline's
// schedule. And where the ranks of an axis are.
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
  int stages = 1;    // pp; where the program searches, ranks that have one stage or several
  // Ranks are numbered pp, dp, tp, the last one fastest; false: dp, pp, tp.
  bool stages_outside = true;
  int shard_stage = 0;            // 0 to 3
  std::string schedule = "1f1b";  // or kSearched
  int micro_batches = 1;

  int num_ranks() const { return replicas * parts * stages; }
  bool operator==(const Way&) const = default;
};

// "pp=2,dp=4,tp=2": as `--mesh` takes it.
std::string mesh_text(const Way& way);
// The flags of a program that has them: "--mesh pp=2,dp=4,tp=1 --schedule 1f1b --micro-batches 8".
std::vector<std::string> flags_of(const Way& way);

// How the ranks of one axis lie on hosts, all groups of the axis alike.
struct AxisPlace {
  int ranks = 1;          // of a group
  int hosts = 1;          // that a group is on
  int members = 1;        // of a group on one host
  int groups_a_host = 1;  // that have members on one host
};
AxisPlace place_of_replicas(const Way& way, const Machine& machine);
AxisPlace place_of_parts(const Way& way, const Machine& machine);
// The host of the first rank of each stage.
std::vector<int> hosts_of_stages(const Way& way, const Machine& machine);

// Layers [begin, end).
struct LayerRange {
  std::size_t begin = 0, end = 0;
};
// The layers of each stage, as a program cuts them: by the cost of blocks in passes of so many
// samples. `rank_of_stage`: one of pp's ranks for each. Requires: stages <= blocks, or one stage.
std::vector<LayerRange> cut_into_stages(const JobProfile& profile, const Way& way, double samples,
                                        const std::vector<int>& rank_of_stage);
// The layers that one pipeline rank holds, a range for each of its stages.
using RankLayers = std::vector<LayerRange>;

// Seconds of a pass of so many samples through a rank's part of the layer, without exchanges.
double pass_of(const PassCost& cost, const LayerProfile& layer, const Way& way, double samples);
// Seconds of adding the gradients of that part to those of another micro-batch.
double adding_of(const LayerProfile& layer, const Way& way);

// Why this way is not possible for the job, machine and global batch; empty when it is.
std::string why_not(const Way& way, const JobProfile& profile, const Machine& machine,
                    std::int64_t global_batch);

}  // namespace paceline::planning
