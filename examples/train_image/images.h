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
  // Batches: float32 [B, channels, height, width] in channels-last layout, and labels [B].
  std::shared_ptr<const paceline::data::Dataset> testing;
  // `seed` decides how images are augmented. Null with --evaluate.
  std::function<std::shared_ptr<const paceline::data::Dataset>(std::uint64_t seed)> training;
  // The number of files that this rank has skipped. Null without --skip-damaged.
  std::function<std::int64_t()> num_skipped;
};

// Throws an Error that names the folder, or the file and the offset of the defect.
Images load_images(const Options& options);

// Loaders for this rank's share of each training epoch, and of the test set, in which each image
// occurs exactly once. `seed` decides the order of training as well as the augmentation.
std::unique_ptr<paceline::data::DataLoader> make_training_loader(
    const Options& options, const Images& images, std::uint64_t seed,
    const paceline::ProcessGroup& group);
std::unique_ptr<paceline::data::DataLoader> make_test_loader(const Options& options,
                                                             const Images& images,
                                                             const paceline::ProcessGroup& group);

}  // namespace train_image
