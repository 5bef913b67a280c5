#include "apps/allocation.h"

#include <fmt/format.h>

#include "paceline/core/check.h"
#include "paceline/core/secret.h"
#include "paceline/rendezvous/slurm_lists.h"
#include "paceline/rendezvous/variables.h"

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

}  // namespace

std::optional<std::vector<launch::Host>> allocated_hosts(const OptionTable& table, int num_nodes,
                                                         const GetVariable& variable) {
  for (const char* by_hand : {"--standalone", "--node-rank", "--rdzv-endpoint"}) {
    if (table[by_hand].given()) return std::nullopt;
  }
  if (variable("TORCHELASTIC_RUN_ID")) {
    refuse_copies(variable, "WORLD_SIZE", variable("PACELINE_STORE") ? "paceline run" : "torchrun");
  }
  refuse_copies(variable, "OMPI_COMM_WORLD_SIZE", "mpirun");
  refuse_copies(variable, "PMI_SIZE", "mpiexec");
  if (variable("SLURM_STEP_ID")) refuse_copies(variable, "SLURM_STEP_NUM_TASKS", "srun");
  const auto list = variable("SLURM_JOB_NODELIST");
  const Option& nnodes = table["--nnodes"];
  const bool one_node = nnodes.given() && num_nodes == 1;
  if (!list || !variable("SLURM_JOB_ID") || one_node) return std::nullopt;
  const auto names = expand_node_list(*list);
  check(names.has_value(), "SLURM_JOB_NODELIST='{}' is not a list of nodes", *list);
  if (nnodes.given() && static_cast<std::size_t>(num_nodes) != names->size()) {
    throw UsageError(fmt::format("--nnodes: {}, but the SLURM job has {} nodes; leave it out",
                                 nnodes.text, names->size()));
  }
  const auto text = variable("SLURM_TASKS_PER_NODE");
  const auto counts = text ? expand_task_counts(*text) : std::nullopt;
  check(!text || (counts && counts->size() == names->size()),
        "SLURM_TASKS_PER_NODE='{}' does not fit {} nodes", text.value_or(""), names->size());
  std::vector<launch::Host> hosts;
  for (std::size_t i = 0; i < names->size(); ++i) {
    hosts.push_back({(*names)[i], counts ? (*counts)[i] : 0});
  }
  return hosts;
}

std::string id_for_hosts(const GetVariable& variable) {
  const auto job = variable("SLURM_JOB_ID");
  return job ? fmt::format("{}-{}", *job, random_hex(2)) : random_hex(8);
}

}  // namespace paceline::apps
