#include "apps/allocation.h"

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/secret.h"
#include "paceline/engine/rendezvous/slurm_lists.h"
#include "paceline/engine/rendezvous/slurm_step.h"
#include "paceline/engine/rendezvous/variables.h"

#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

// A size above 1 means that there is one of this launcher for each task.
void refuse_copies(const GetVariable& variable, const std::string& name, const char* launcher) {
  const auto size = read_number(variable, name);
  if (!size || *size <= 1) return;
  throw UsageError(
      fmt::format("{0} has started {1} of this launcher ({2}={1}), and each would start a job of "
                  "its own; start the program itself with {0}, or this launcher once, without {0}; "
                  "or give --nnodes and --rdzv-endpoint",
                  launcher, *size, name));
}

// Each component has variables of its own, and only srun starts something on all of them.
void refuse_components(const GetVariable& variable) {
  const auto size = read_number(variable, "SLURM_HET_SIZE");
  if (!size || *size <= 1) return;
  throw UsageError(
      fmt::format("this SLURM job has {0} components (SLURM_HET_SIZE={0}), on which paceline run "
                  "does not start ranks; start the program itself: srun --het-group=0-{1} PROGRAM; "
                  "or give --standalone for ranks on this machine alone",
                  *size, *size - 1));
}

// The number of ranks on each node: its tasks in the job, or 0 where SLURM does not tell it or the
// user has given a number.
std::vector<int> tasks_of(const std::vector<std::string>& nodes, const Option& ranks,
                          const GetVariable& variable) {
  const bool is_given =
      ranks.given() && ranks.text.find_first_not_of("0123456789") == ranks.text.npos;
  const auto text = variable("SLURM_TASKS_PER_NODE");
  if (is_given || !text) return std::vector<int>(nodes.size(), 0);
  const auto counts = expand_task_counts(*text);
  check(counts && counts->size() == nodes.size(),
        "SLURM_TASKS_PER_NODE='{}' does not fit the job's {} nodes (SLURM_JOB_NODELIST); say how "
        "many ranks each node gets: --nproc-per-node N",
        *text, nodes.size());
  return *counts;
}

}  // namespace

std::optional<std::vector<launcher::Host>> allocated_hosts(const OptionTable& table, int num_nodes,
                                                           const GetVariable& variable) {
  for (const char* by_hand : {"--standalone", "--node-rank", "--rdzv-endpoint"}) {
    if (table[by_hand].given()) return std::nullopt;
  }
  if (variable("TORCHELASTIC_RUN_ID")) {
    refuse_copies(variable, "WORLD_SIZE", variable("PACELINE_STORE") ? "paceline run" : "torchrun");
  }
  refuse_copies(variable, "OMPI_COMM_WORLD_SIZE", "mpirun");
  refuse_copies(variable, "PMI_SIZE", "mpiexec");
  if (in_step_of_srun(variable)) {
    refuse_copies(variable, "SLURM_STEP_NUM_TASKS", "srun");
    return std::nullopt;  // the only task of its step has one node: this one
  }
  const Option& nnodes = table["--nnodes"];
  if (nnodes.given() && num_nodes == 1) return std::nullopt;
  refuse_components(variable);
  const auto list = variable("SLURM_JOB_NODELIST");
  if (!list || !variable("SLURM_JOB_ID")) return std::nullopt;
  const auto names = expand_node_list(*list);
  check(names.has_value(), "SLURM_JOB_NODELIST='{}' is not a list of nodes", *list);
  if (nnodes.given() && static_cast<std::size_t>(num_nodes) != names->size()) {
    throw UsageError(fmt::format("--nnodes: {}, but the SLURM job has {} nodes; leave it out",
                                 nnodes.text, names->size()));
  }
  const std::vector<int> tasks = tasks_of(*names, table["--nproc-per-node"], variable);
  std::vector<launcher::Host> hosts;
  for (std::size_t i = 0; i < names->size(); ++i) hosts.push_back({(*names)[i], tasks[i]});
  return hosts;
}

std::string id_for_hosts(const GetVariable& variable) {
  const auto job = variable("SLURM_JOB_ID");
  return job ? fmt::format("{}-{}", *job, random_hex(2)) : random_hex(8);
}

}  // namespace paceline::apps
