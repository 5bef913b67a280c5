#include "examples/train_cnn/console.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include "paceline/process/shell_words.h"
#include "paceline/train/runtime.h"

namespace train_cnn {
namespace {

namespace fs = std::filesystem;

// `paceline` where the shell finds it; otherwise the one that was installed or built with this
// program.
std::string launcher() {
  std::error_code ignored;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (fs::is_regular_file(fs::path(folder) / "paceline", ignored)) return "paceline";
  }
  const auto here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* place : {"paceline", "../apps/paceline"}) {
    const auto file = (here / place).lexically_normal();
    if (fs::is_regular_file(file, ignored)) return paceline::launch::shell_quoted(file.string());
  }
  return "paceline";
}

}  // namespace

void print_opening(const Options& options, const paceline::ProcessGroup& group, int threads,
                   const paceline::data::ImageDataset& images) {
  const int world_size = group.world_size();
  fmt::print("train_cnn: {} on {} ({} training images of {}x{}x{})\n", options.model, images.name,
             images.size(), images.channels(), images.height(), images.width());
  fmt::print("  launched by {}; {} rank{} x {} thread{}; backend {}, transport {}\n",
             group.launch_environment().launcher, world_size, world_size == 1 ? "" : "s", threads,
             threads == 1 ? "" : "s", group.backend(), group.transport());
  fmt::print("  {}\n", paceline::train::describe_libtorch());
  if (paceline::train::is_reference_blas()) {
    fmt::print(
        "  warning: this BLAS is about 20 times slower than OpenBLAS; apt-get install "
        "libopenblas0-pthread\n");
  }
}

std::string next_command(const Options& options, const paceline::ProcessGroup& group,
                         const paceline::train::TrainingState& end) {
  // Whatever ended this run would end the next one before its first step.
  std::string more = "--resume";
  if (end.epoch >= options.epochs) more += fmt::format(" --epochs {}", options.epochs + 1);
  if (options.max_steps > 0 && end.step >= options.max_steps) {
    more += fmt::format(" --max-steps {}", 2 * options.max_steps);
  }
  if (!options.checkpoint_dir.empty()) return fmt::format("the same with {}", more);
  if (group.world_size() == 1) {
    return fmt::format("{} run --nproc-per-node 2 {}", launcher(), options.command);
  }
  return fmt::format("the same with --checkpoint-dir run, then with --checkpoint-dir run {}", more);
}

}  // namespace train_cnn
