#pragma once

// Labelled images in memory: read from the files of MNIST, Fashion-MNIST and CIFAR-10, and as
// samples of a data set.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/data/dataset.h"

namespace paceline::data {

// How ImageSamples turns an image into the model's input.
struct ImageSamplesOptions {
  std::vector<float> mean;  // for each channel, of pixels in [0, 1]; empty: 0
  std::vector<float> std;   // for each channel, above 0; empty: 1
  // Pads the image with this many zero pixels on each side, then crops it to its original size at
  // a random position.
  int crop_padding = 0;
  bool random_flip = false;    // mirrored left to right with probability 1/2
  bool channels_last = false;  // memory format of the images
  std::uint64_t seed = 0;      // for the random choices
};

class ImageTransform;

// Images as the files store them: one byte for each pixel and channel.
struct ImageDataset {
  // Where Debian's package dataset-fashion-mnist installs its files.
  static constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";

  std::string name;                  // for example "fashion-mnist"
  at::Tensor images;                 // uint8 [N, channels, height, width]
  at::Tensor labels;                 // int64 [N], in [0, classes.size())
  std::vector<std::string> classes;  // names of the classes

  std::int64_t size() const { return images.size(0); }
  std::int64_t channels() const { return images.size(1); }
  std::int64_t height() const { return images.size(2); }
  std::int64_t width() const { return images.size(3); }
};

enum class Split { kTrain, kTest };

// The functions below read the files of `folder` under their usual names. Errors: kInvalid for a
// missing folder or file, and for a CIFAR-10 file that is empty or cannot be read; kSystem for an
// IDX file that cannot be read; kCorrupt, with the file's name, for truncated or invalid data.

// Reads {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, in MNIST's format
// (http://yann.lecun.com/exdb/mnist). Each file may be compressed; its name then ends in ".gz".
ImageDataset load_mnist(const std::string& folder, Split split);
// Reads the same files, with Fashion-MNIST's classes. Debian's package dataset-fashion-mnist
// installs them in ImageDataset::kFashionMnistFolder.
ImageDataset load_fashion_mnist(const std::string& folder, Split split);
// Reads data_batch_1.bin to data_batch_5.bin, or test_batch.bin, from `folder` or its subfolder
// cifar-10-batches-bin: CIFAR-10's binary version, with 3,073 bytes per record.
ImageDataset load_cifar10(const std::string& folder, Split split);

// Labelled images as a model takes them: transformed, in batches from make_image_batch().
class ImageSamples : public Dataset {
 public:
  // Error(kInvalid) unless images and labels have the types and shapes of ImageDataset, and their
  // numbers are equal. Tensors that are not contiguous, as after permute(), are copied once.
  explicit ImageSamples(ImageDataset images, const ImageSamplesOptions& options = {});

  std::string name() const override { return images_.name; }
  std::int64_t size() const override { return images_.size(); }
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t epoch) const override;

 private:
  const ImageDataset images_;
  const bool channels_last_;
  const std::shared_ptr<const ImageTransform> transform_;
};

}  // namespace paceline::data
