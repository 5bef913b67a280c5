#include "examples/train_cnn/console.h"

#include <fmt/format.h>

#include "paceline/train/runtime.h"

namespace train_cnn {

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

std::string next_command(const Options& options, const paceline::ProcessGroup& group) {
  if (group.world_size() == 1) return "paceline run --nproc-per-node 2 train_cnn";
  if (options.checkpoint_dir.empty())
    return "the same with --checkpoint-dir DIR, then with --resume --epochs N";
  return fmt::format("the same with --resume --epochs {}", options.epochs + 1);
}

}  // namespace train_cnn
