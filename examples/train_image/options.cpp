#include "examples/train_image/options.h"

#include <algorithm>

#include <fmt/format.h>

#include "apps/cli/option_value.h"
#include "examples/train_image/model.h"

namespace train_image {
namespace {

using paceline::apps::is_one_of;
using paceline::apps::UsageError;
using training_flags::FlagGroup;

constexpr const char* kExamples =
    "\nExamples:\n  train_image\n  paceline run --nproc-per-node 2 train_image --epochs 3\n"
    "  mpirun -np 2 train_image --dataset cifar10 --data-dir DIR --lr 1e-3\n"
    "  paceline run --nproc-per-node 4 train_image --dataset folder --data-dir imagenet \\\n"
    "    --model resnet50 --optimizer sgd --lr 0.1 --weight-decay 1e-4 --lr-schedule cosine";

void declare_data(CLI::App& app, Options& options) {
  FlagGroup data(app, "Data and model");
  data.value("--dataset", options.dataset, "NAME",
             "fashion-mnist, mnist, cifar10, or folder: DIR/train and DIR/val, a folder a class")
      ->check(is_one_of({"fashion-mnist", "mnist", "cifar10", "folder"}));
  data.value("--data-dir", options.data_dir, "DIR",
             "Folder of the data set's files [Debian's Fashion-MNIST]");
  data.value("--model", options.model, "NAME",
             "cnn, net (28x28), resnet18, 34, 50 or 101, efficientnet_b0 to b7")
      ->check(is_one_of(model_names()));
  data.count("--image-size", options.image_size,
             "Height and width of a folder's images; 0: the model's usual", 0, 4096);
  data.flag("--skip-damaged", options.skip_damaged,
            "Leave out files of a folder that cannot be read or decoded");
  data.flag("--sync-batch-norm", options.sync_batch_norm,
            "Normalise over the samples of all ranks");
  data.flag("--evaluate", options.evaluate, "Evaluate the file of --weights, do not train");
}

void declare_augmentation(CLI::App& app, Options& options) {
  FlagGroup group(app, "Augmentation");
  group
      .value("--augment", options.augment, "NAME",
             "none, flip, crop (and flip), or imagenet: a part of any size (and flip) [imagenet "
             "for a folder, otherwise none]")
      ->check(is_one_of({"none", "flip", "crop", "imagenet"}));
  group.number("--random-erasing", options.random_erasing,
               "Probability of erasing a part of an image", 1);
  group.number("--mixup", options.mixup, "Alpha of averaging images in pairs; 0: none");
  group.number("--cutmix", options.cutmix, "Alpha of pasting a part of another image; 0: none");
  group.number("--label-smoothing", options.label_smoothing,
               "Weight of a label that all classes share", 1);
}

void check_model(const Options& options) {
  if (options.model == "net" && options.dataset == "cifar10") {
    throw UsageError(
        "--model net: takes images of 1x28x28, those of --dataset cifar10 are 3x32x32; use --model "
        "cnn");
  }
  if (options.model == "net" && options.dataset == "folder") {
    throw UsageError(
        "--model net: takes images of 1x28x28, those of --dataset folder have three colours; use "
        "--model cnn");
  }
  if (options.sync_batch_norm && (options.model == "cnn" || options.model == "net"))
    throw UsageError(
        fmt::format("--sync-batch-norm: --model {} has no batch normalisation", options.model));
  if (options.evaluate && options.training.run.weights.empty())
    throw UsageError("--evaluate: needs --weights, the file to evaluate");
}

void check_augmentation(const Options& options) {
  const bool in_folder = options.dataset == "folder";
  const std::string& augment = options.augment;
  if (in_folder && augment == "crop")
    throw UsageError("--augment crop: is for images of one size; use imagenet with a folder");
  if (in_folder) return;
  if (augment == "imagenet")
    throw UsageError(fmt::format("--augment imagenet: needs --dataset folder; use crop with {}",
                                 options.dataset));
  if (options.random_erasing > 0) throw UsageError("--random-erasing: needs --dataset folder");
  if (options.skip_damaged) throw UsageError("--skip-damaged: needs --dataset folder");
  if (options.image_size > 0) throw UsageError("--image-size: needs --dataset folder");
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a network on images with any number of ranks.", "train_image");
  app.footer(kExamples);
  declare_data(app, options);
  declare_augmentation(app, options);
  training_flags::parse(argc, argv, app, options.training, [&] {
    check_model(options);
    check_augmentation(options);
  });
  if (options.augment.empty()) options.augment = options.dataset == "folder" ? "imagenet" : "none";
  if (options.image_size == 0) options.image_size = usual_image_size(options.model);
  return options;
}

}  // namespace train_image
