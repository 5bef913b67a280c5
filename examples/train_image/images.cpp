#include "examples/train_image/images.h"

#include <algorithm>
#include <optional>

#include "paceline/engine/core/check.h"
#include "paceline/files/images/image_pipeline.h"
#include "paceline/training/data/batch_mixing.h"
#include "paceline/training/data/image_dataset.h"
#include "paceline/training/data/image_folder.h"

namespace train_image {
namespace {

namespace data = paceline::data;
namespace images = paceline::images;
using paceline::check;

// --- Data sets in memory ---

data::ImageDataset read(const Options& options, data::Split split) {
  const bool is_debians = options.dataset == "fashion-mnist" && options.data_dir.empty();
  const std::string folder =
      is_debians ? data::ImageDataset::kFashionMnistFolder : options.data_dir;
  if (options.dataset == "cifar10") return data::load_cifar10(folder, split);
  if (options.dataset == "mnist") return data::load_mnist(folder, split);
  return data::load_fashion_mnist(folder, split);
}

// Mean and standard deviation of the training images.
data::ImageSamplesOptions normalisation(const std::string& dataset) {
  if (dataset == "cifar10")
    return {.mean = {0.4914f, 0.4822f, 0.4465f}, .std = {0.2470f, 0.2435f, 0.2616f}};
  if (dataset == "mnist") return {.mean = {0.1307f}, .std = {0.3081f}};
  return {.mean = {0.2860f}, .std = {0.3530f}};
}

Images load_into_memory(const Options& options) {
  data::ImageSamplesOptions form = normalisation(options.dataset);
  form.channels_last = true;
  std::optional<data::ImageDataset> train;
  if (!options.evaluate) train = read(options, data::Split::kTrain);
  const auto test = read(options, data::Split::kTest);
  Images all{.name = test.name,
             .classes = test.classes,
             .channels = test.channels(),
             .height = test.height(),
             .width = test.width(),
             .testing = std::make_shared<data::ImageSamples>(test, form)};
  if (!train) return all;
  if (options.augment == "crop") form.crop_padding = options.dataset == "cifar10" ? 4 : 2;
  // Mirrored digits are not valid digits.
  form.random_flip = options.augment != "none" && options.dataset != "mnist";
  all.num_training = train->size();
  all.training = [train = *train, form](std::uint64_t seed) mutable {
    form.seed = seed;
    return std::make_shared<data::ImageSamples>(train, form);
  };
  return all;
}

// --- A folder of files ---

data::ImageFolderOptions folder_options(const Options& options) {
  const auto size = static_cast<int>(options.image_size);
  return {.pipeline = {.size = {size, size},
                       .framing = images::Framing::kCentreCrop,
                       .shorter_side = size * 256 / 224,
                       .mean = images::kImageNetMean,
                       .std = images::kImageNetStd},
          .channels_last = true,
          .skip_bad_images = options.skip_damaged};
}

std::shared_ptr<const data::ImageFolder> open_training_folder(const Options& options,
                                                              std::uint64_t seed) {
  data::ImageFolderOptions opening = folder_options(options);
  if (options.augment == "imagenet") opening.pipeline.framing = images::Framing::kRandomResizedCrop;
  opening.pipeline.flip_probability = options.augment == "none" ? 0 : 0.5;
  opening.pipeline.erasing.probability = options.random_erasing;
  opening.seed = seed;
  return std::make_shared<data::ImageFolder>(options.data_dir + "/train", opening);
}

// A label is the position of a class in its folder's list, so both lists must be the same.
void require_same_classes(const std::vector<std::string>& train,
                          const std::vector<std::string>& test, const std::string& folder) {
  std::string differences;
  const auto list = [&](const auto& these, const auto& those, const char* where) {
    for (const auto& name : these) {
      if (std::find(those.begin(), those.end(), name) == those.end())
        differences += fmt::format("\n  {}: only in {}", name, where);
    }
  };
  list(train, test, "train");
  list(test, train, "val");
  check(differences.empty(),
        "the folders train and val of {} have different classes, so their labels do too:{}", folder,
        differences);
}

Images open_folder(const Options& options) {
  const auto test =
      std::make_shared<data::ImageFolder>(options.data_dir + "/val", folder_options(options));
  Images all{.name = test->name(),
             .classes = test->classes(),
             .channels = 3,
             .height = options.image_size,
             .width = options.image_size,
             .testing = test};
  using Folders = std::vector<std::shared_ptr<const data::ImageFolder>>;
  const auto folders = std::make_shared<Folders>(Folders{test});
  if (options.skip_damaged) {
    all.num_skipped = [folders] {
      std::int64_t sum = 0;
      for (const auto& folder : *folders) sum += folder->num_skipped();
      return sum;
    };
  }
  if (options.evaluate) return all;
  const std::uint64_t first_seed = options.training.run.seed.value_or(0);
  const auto first = open_training_folder(options, first_seed);
  require_same_classes(first->classes(), all.classes, options.data_dir);
  all.name = first->name();
  all.num_training = first->size();
  all.training = [=](std::uint64_t seed) {
    folders->push_back(seed == first_seed ? first : open_training_folder(options, seed));
    return folders->back();
  };
  return all;
}

// Without mixing, the dataset is returned as it is: its labels stay int64.
std::shared_ptr<const data::Dataset> mixed(std::shared_ptr<const data::Dataset> dataset,
                                           const Options& options, const Images& all,
                                           std::uint64_t seed) {
  if (options.mixup == 0 && options.cutmix == 0 && options.label_smoothing == 0) return dataset;
  return std::make_shared<data::MixedBatches>(
      std::move(dataset),
      data::BatchMixingOptions{.num_classes = static_cast<std::int64_t>(all.classes.size()),
                               .mixup_alpha = options.mixup,
                               .cutmix_alpha = options.cutmix,
                               .label_smoothing = options.label_smoothing,
                               .seed = seed});
}

}  // namespace

Images load_images(const Options& options) {
  const bool has_usual_place = options.dataset == "fashion-mnist";
  check(has_usual_place || !options.data_dir.empty(),
        "--dataset {} needs --data-dir: the folder with its files", options.dataset);
  return options.dataset == "folder" ? open_folder(options) : load_into_memory(options);
}

std::unique_ptr<data::DataLoader> make_training_loader(const Options& options, const Images& all,
                                                       std::uint64_t seed,
                                                       const paceline::ProcessGroup& group) {
  const data::DistributedSampler sampler(all.num_training, group.world_size(), group.rank(),
                                         {.seed = seed});
  return std::make_unique<data::DataLoader>(mixed(all.training(seed), options, all, seed), sampler,
                                            options.training.loading);
}

std::unique_ptr<data::DataLoader> make_test_loader(const Options& options, const Images& all,
                                                   const paceline::ProcessGroup& group) {
  constexpr std::int64_t kPixels = 1 << 21;  // the most pixels in a batch, to limit memory
  const auto fitting = std::max<std::int64_t>(1, kPixels / (all.height * all.width));
  return std::make_unique<data::DataLoader>(
      all.testing, data::evaluation_indices(all.testing->size(), group.world_size(), group.rank()),
      data::DataLoaderOptions{.batch_size = std::min<std::int64_t>(250, fitting),
                              .num_threads = options.training.loading.num_threads,
                              .device = options.training.loading.device});
}

}  // namespace train_image
