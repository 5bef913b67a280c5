#pragma once

// The images that train_image trains on and evaluates with, as the flags choose them.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/data/data_loader.h"

#include "examples/train_image/options.h"

namespace train_image {

struct Images {
  std::string name;
  std::vector<std::string> classes;
  std::int64_t channels = 0, height = 0, width = 0;
  std::int64_t num_training = 0;
  // float32 [B, channels, height, width], with the channels last, and labels [B].
  std::shared_ptr<const paceline::data::Dataset> testing;
  // `seed` decides on how images are augmented. Null with --evaluate.
  std::function<std::shared_ptr<const paceline::data::Dataset>(std::uint64_t seed)> training;
  // Files that this rank has skipped. Null without --skip-damaged.
  std::function<std::int64_t()> num_skipped;
};

// Error names the folder, or the file and offset, where something is wrong.
Images load_images(const Options& options);

// This rank's share: of each epoch for training, of the exact test set for testing. `seed` also
// decides on the order.
std::unique_ptr<paceline::data::DataLoader> make_training_loader(
    const Options& options, const Images& images, std::uint64_t seed,
    const paceline::ProcessGroup& group);
std::unique_ptr<paceline::data::DataLoader> make_test_loader(const Options& options,
                                                             const Images& images,
                                                             const paceline::ProcessGroup& group);

}  // namespace train_image
