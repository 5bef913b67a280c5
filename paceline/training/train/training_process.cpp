#include "paceline/training/train/training_process.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <typeinfo>

#include <dlfcn.h>
#include <fmt/format.h>
#include <malloc.h>

#include <ATen/ATen.h>
#include <torch/utils.h>
#include <torch/version.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/telemetry/crash_reporter.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/tensor/compute_settings.h"
#include "paceline/training/train/libtorch_facts.h"

namespace paceline::train {

namespace {

// Finds a function of this name in the program and the libraries that are loaded globally, such as
// those of LibTorch; null if there is none.
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

void keep_large_blocks() {
  constexpr int kLargestThreshold = 32 << 20;  // glibc accepts no larger value
  mallopt(M_MMAP_THRESHOLD, kLargestThreshold);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

std::string blas_name() {
  if (at::hasMKL()) return "MKL";
  if (auto* const config = find<char*()>("openblas_get_config")) {
    const std::string text = config();  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
    return text.substr(0, text.find(' ', text.find(' ') + 1));
  }
  return "reference BLAS";
}

bool is_reference_blas() { return blas_name() == "reference BLAS"; }

std::string describe_libtorch() {
  return fmt::format("LibTorch {}, {}", TORCH_VERSION, blas_name());
}

namespace {

c10::Device take_device(const std::string& name) {
  if (name == "cpu") return c10::kCPU;
  const c10::Device device = choose_device(name, detect_launch_environment().local_rank);
  set_current_device(device);
  return device;
}

std::shared_ptr<ProcessGroup> form_group(const ProcessOptions& options) {
  keep_large_blocks();
  return init_process_group({.group = {.backend = options.backend}});
}

int threads_of(const ProcessOptions& options) {
  const int threads = set_thread_count(options.threads);
  return options.logical_shards > 0 ? paceline::detail::settle_thread_count() : threads;
}

}  // namespace

TrainingProcess::TrainingProcess(const ProcessOptions& options, std::uint64_t seed)
    : device_(take_device(options.device)),
      group_(form_group(options)),
      symmetric_tensors_(*group_),
      num_threads_(threads_of(options)) {
  torch::manual_seed(seed + static_cast<std::uint64_t>(group_->rank()));
}

void TrainingProcess::print_opening(const std::string& title) const {
  if (group_->rank() != 0) return;
  const int world_size = group_->world_size();
  fmt::print("{}\n", title);
  fmt::print("  launched by {}; {} x {}; backend {}, transport {}\n",
             engine(*group_).launch_environment().launcher, counted(world_size, "rank"),
             counted(num_threads_, "thread"), group_->backend(), group_->transport());
  fmt::print("  {}{}\n", describe_libtorch(),
             device_.is_cpu() ? "" : fmt::format("; device {}", device_.str()));
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
