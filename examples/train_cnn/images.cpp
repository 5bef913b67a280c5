#include "examples/train_cnn/images.h"

#include <fmt/format.h>

#include "paceline/core/error.h"

namespace train_cnn {
namespace {

namespace data = paceline::data;
using paceline::Error;
using paceline::ErrorCode;

data::ImageDataset load(const Options& options, data::Split split) {
  const bool is_debians = options.dataset == "fashion-mnist" && options.data_dir.empty();
  const std::string folder = is_debians ? data::kFashionMnistFolder : options.data_dir;
  if (folder.empty()) {
    throw Error(
        ErrorCode::kInvalid,
        fmt::format("--dataset {} needs --data-dir: the folder with its files", options.dataset));
  }
  if (options.dataset == "cifar10") return data::load_cifar10(folder, split);
  if (options.dataset == "mnist") return data::load_mnist(folder, split);
  return data::load_fashion_mnist(folder, split);
}

// Mean and standard deviation of the training images.
data::TransformOptions normalisation(const std::string& dataset) {
  if (dataset == "cifar10")
    return {.mean = {0.4914f, 0.4822f, 0.4465f}, .std = {0.2470f, 0.2435f, 0.2616f}};
  if (dataset == "mnist") return {.mean = {0.1307f}, .std = {0.3081f}};
  return {.mean = {0.2860f}, .std = {0.3530f}};
}

}  // namespace

Images load_images(const Options& options) {
  return {std::make_shared<data::ImageDataset>(load(options, data::Split::kTrain)),
          std::make_shared<data::ImageDataset>(load(options, data::Split::kTest))};
}

std::unique_ptr<data::DataLoader> make_training_loader(const Options& options, const Images& images,
                                                       std::uint64_t seed,
                                                       const paceline::ProcessGroup& group) {
  auto transform = normalisation(options.dataset);
  if (options.augment) {
    transform.crop_padding = options.dataset == "cifar10" ? 4 : 2;
    transform.random_flip = options.dataset != "mnist";  // a mirrored digit is none
  }
  const data::DistributedSampler sampler(images.training->size(), group.world_size(), group.rank(),
                                         {.seed = seed});
  const data::DataLoaderOptions loading{.batch_size = options.batch_size,
                                        .global_batch_size = options.global_batch_size,
                                        .micro_batch_size = options.micro_batch_size};
  const auto samples = std::make_shared<data::ImageSamples>(
      *images.training,
      data::ImageSamplesOptions{.transform = transform, .channels_last = true, .seed = seed});
  return std::make_unique<data::DataLoader>(samples, sampler, loading);
}

std::unique_ptr<data::DataLoader> make_test_loader(const Options& options, const Images& images,
                                                   const paceline::ProcessGroup& group) {
  auto share = data::evaluation_indices(images.testing->size(), group.world_size(), group.rank());
  const auto samples = std::make_shared<data::ImageSamples>(
      *images.testing, data::ImageSamplesOptions{.transform = normalisation(options.dataset),
                                                 .channels_last = true});
  return std::make_unique<data::DataLoader>(samples, std::move(share),
                                            data::DataLoaderOptions{.batch_size = 250});
}

}  // namespace train_cnn
