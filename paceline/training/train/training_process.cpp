#include "paceline/training/train/training_process.h"

#include <cstdio>
#include <cstdlib>
#include <typeinfo>

#include <fmt/format.h>

#include <torch/utils.h>

#include "paceline/engine/collectives/group/init.h"
#include "paceline/engine/core/exit_code.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/telemetry/uncaught_errors.h"
#include "paceline/training/tensor/thread_count.h"
#include "paceline/training/train/runtime.h"

namespace paceline::train {
namespace {

std::shared_ptr<ProcessGroup> form_group(const ProcessOptions& options) {
  keep_large_blocks();
  return init_process_group({.group = {.backend = options.backend}});
}

int threads_of(const ProcessOptions& options) {
  const int threads = set_num_threads(options.threads);
  return options.logical_shards > 0 ? settle_thread_count() : threads;
}

}  // namespace

TrainingProcess::TrainingProcess(const ProcessOptions& options, std::uint64_t seed)
    : group_(form_group(options)), symmetric_tensors_(*group_), num_threads_(threads_of(options)) {
  torch::manual_seed(seed + static_cast<std::uint64_t>(group_->rank()));
}

void TrainingProcess::print_opening(const std::string& title) const {
  if (group_->rank() != 0) return;
  const int world_size = group_->world_size();
  fmt::print("{}\n", title);
  fmt::print("  launched by {}; {} rank{} x {} thread{}; backend {}, transport {}\n",
             group_->launch_environment().launcher, world_size, world_size == 1 ? "" : "s",
             num_threads_, num_threads_ == 1 ? "" : "s", group_->backend(), group_->transport());
  fmt::print("  {}\n", describe_libtorch());
  if (is_reference_blas()) {
    fmt::print(
        "  warning: this BLAS is about 20 times slower than OpenBLAS; apt-get install "
        "libopenblas0-pthread\n");
  }
}

int run_guarded(const std::function<int()>& program) {
  try {
    return program();
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "{}", uncaught_text(typeid(error).name(), error.what(), log::rank()));
    std::fflush(nullptr);
    std::_Exit(exit_code_of(error));
  }
}

}  // namespace paceline::train
