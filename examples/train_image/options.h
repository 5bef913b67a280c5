#pragma once

// The flags of train_image: its own, and the flags that all training programs share.

#include <cstdint>
#include <string>

#include "examples/training_flags.h"

namespace train_image {

struct Options {
  std::string dataset = "fashion-mnist";  // or mnist, cifar10, folder
  std::string data_dir;                   // default: the folder of Debian's Fashion-MNIST package
  std::string model = "cnn";              // or net, resnet18, ..., efficientnet_b0, ...
  std::int64_t image_size = 0;            // size of a folder's images; 0: the model's usual size
  bool skip_damaged = false;              // skip damaged files of a folder
  bool sync_batch_norm = false;
  bool evaluate = false;  // only evaluate the weights in the file, do not train

  // How training images are augmented: none, flip, crop or imagenet.
  std::string augment;        // empty: imagenet for a folder, otherwise none
  double random_erasing = 0;  // probability
  double mixup = 0;           // its alpha; 0: none
  double cutmix = 0;          // its alpha; 0: none
  double label_smoothing = 0;

  training_flags::TrainingFlags training;
};

// Ends the program with exit code 2 if a flag is wrong, and with 0 after --help.
Options parse_options(int argc, char** argv);

}  // namespace train_image
