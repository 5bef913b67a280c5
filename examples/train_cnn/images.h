#pragma once

// The images that train_cnn trains on, as the flags choose them.

#include <memory>

#include "paceline/collectives/group/process_group.h"
#include "paceline/data/data_loader.h"
#include "paceline/data/image_samples.h"

#include "examples/train_cnn/options.h"

namespace train_cnn {

struct Images {
  std::shared_ptr<paceline::data::ImageDataset> training;
  std::shared_ptr<paceline::data::ImageDataset> testing;
};

// Error names the folder, or the file and offset, where something is wrong.
Images load_images(const Options& options);

// This rank's share: of each epoch for training, of the exact test set for testing. `seed` decides
// on the order and on how images are augmented.
std::unique_ptr<paceline::data::DataLoader> make_training_loader(
    const Options& options, const Images& images, std::uint64_t seed,
    const paceline::ProcessGroup& group);
std::unique_ptr<paceline::data::DataLoader> make_test_loader(const Options& options,
                                                             const Images& images,
                                                             const paceline::ProcessGroup& group);

}  // namespace train_cnn
