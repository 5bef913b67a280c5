#include "paceline/training/data/image_dataset.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>

#include <sys/mman.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/data/dataset_files.h"
#include "paceline/training/data/transform.h"

namespace paceline::data {

namespace {

constexpr std::int64_t kIdxLabelHeader = 8;  // bytes before the first label
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Allocates private memory, in huge pages if the kernel has them: faulting in tens of thousands of
// small pages, and freeing them when the rank ends, takes longer than reading the images.
// LibTorch's allocator could return memory that ranks share, which is freed only when the last rank
// ends.
at::Tensor make_images(at::IntArrayRef sizes) {
  std::size_t bytes = 1;
  for (const std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
  const std::size_t mapped = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const memory = mapped == 0 ? MAP_FAILED
                                   : mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return at::empty(sizes, at::kByte);
  madvise(memory, mapped, MADV_HUGEPAGE);
  return at::from_blob(
      memory, sizes, [mapped](void* begin) { munmap(begin, mapped); }, at::kByte);
}

void require_label(int label, std::size_t num_classes, const std::string& path,
                   std::int64_t offset) {
  if (static_cast<std::size_t>(label) < num_classes) return;
  fail(ErrorCode::kCorrupt, "{}: byte {}: the label {} is not in [0, {})", path, offset, label,
       num_classes);
}

ImageDataset load_idx(const std::string& folder, Split split, std::string name,
                      std::vector<std::string> classes) {
  const std::string prefix = folder + (split == Split::kTrain ? "/train" : "/t10k");
  const IdxFile images = read_idx(prefix + "-images-idx3-ubyte", 3);
  const IdxFile labels = read_idx(prefix + "-labels-idx1-ubyte", 1);
  if (images.sizes[0] != labels.sizes[0]) {
    fail(ErrorCode::kCorrupt, "{} has {} images, but {} has {} labels", images.path,
         images.sizes[0], labels.path, labels.sizes[0]);
  }
  ImageDataset dataset;
  dataset.name = std::move(name);
  dataset.classes = std::move(classes);
  dataset.images = make_images({images.sizes[0], 1, images.sizes[1], images.sizes[2]});
  std::memcpy(dataset.images.data_ptr(), images.elements.data(), images.elements.size());
  dataset.labels = at::empty({labels.sizes[0]}, at::kLong);
  auto* to = dataset.labels.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < labels.elements.size(); ++i) {
    require_label(labels.elements[i], dataset.classes.size(), labels.path,
                  kIdxLabelHeader + static_cast<std::int64_t>(i));
    to[i] = labels.elements[i];
  }
  return dataset;
}

}  // namespace

ImageDataset load_mnist(const std::string& folder, Split split) {
  return load_idx(folder, split, "mnist", {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"});
}

ImageDataset load_fashion_mnist(const std::string& folder, Split split) {
  check(std::filesystem::is_directory(folder),
        "the data folder {} does not exist; Debian's package dataset-fashion-mnist installs "
        "Fashion-MNIST in {}",
        folder, ImageDataset::kFashionMnistFolder);
  return load_idx(folder, split, "fashion-mnist",
                  {"T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt",
                   "sneaker", "bag", "ankle boot"});
}

ImageDataset load_cifar10(const std::string& given, Split split) {
  // The official archive unpacks into a folder of this name.
  const std::string unpacked = given + "/cifar-10-batches-bin";
  const std::string folder = std::filesystem::is_directory(unpacked) ? unpacked : given;
  std::vector<std::string> paths;
  if (split == Split::kTest) paths.push_back(folder + "/test_batch.bin");
  for (int batch = 1; split == Split::kTrain && batch <= 5; ++batch) {
    paths.push_back(fmt::format("{}/data_batch_{}.bin", folder, batch));
  }
  ImageDataset dataset;
  dataset.name = "cifar10";
  dataset.classes = {"airplane", "automobile", "bird",  "cat",  "deer",
                     "dog",      "frog",       "horse", "ship", "truck"};
  std::vector<std::int64_t> counts;
  for (const auto& path : paths) counts.push_back(count_cifar_records(path));
  const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  dataset.images = make_images({total, 3, 32, 32});
  dataset.labels = at::empty({total}, at::kLong);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < paths.size(); first += counts[i++]) {
    const auto count = static_cast<std::size_t>(counts[i]);
    read_cifar_records(paths[i], dataset.classes.size(),
                       {dataset.images.data_ptr<std::uint8_t>() + first * kCifarImage,
                        count * static_cast<std::size_t>(kCifarImage)},
                       {dataset.labels.data_ptr<std::int64_t>() + first, count});
  }
  return dataset;
}

std::vector<at::Tensor> make_image_batch(
    std::span<const std::int64_t> indices, const ImageShape& shape, bool channels_last,
    const std::function<std::int64_t(std::int64_t index, float* out)>& load) {
  const auto count = std::ssize(indices);
  const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  at::Tensor batch = at::empty({count, shape.channels, shape.height, shape.width},
                               at::TensorOptions(at::kFloat).memory_format(format));
  at::Tensor target = at::empty({count}, at::kLong);
  auto* data = batch.data_ptr<float>();
  auto* label = target.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    *label++ = load(index, data);
    data += shape.pixels();
  }
  return {std::move(batch), std::move(target)};
}

namespace {

// Returns the data set with contiguous tensors, whose bytes are later read in place.
ImageDataset readable(ImageDataset dataset) {
  at::Tensor &images = dataset.images, &labels = dataset.labels;
  check(images.defined() && images.scalar_type() == at::kByte && images.dim() == 4 &&
            images.device().is_cpu(),
        "dataset {}: images must be uint8 [N, channels, height, width] in host memory",
        dataset.name);
  check(labels.defined() && labels.scalar_type() == at::kLong && labels.dim() == 1 &&
            labels.device().is_cpu(),
        "dataset {}: labels must be int64 [N] in host memory", dataset.name);
  check(labels.size(0) == images.size(0), "dataset {}: {} images and {} labels", dataset.name,
        images.size(0), labels.size(0));
  images = images.contiguous();
  labels = labels.contiguous();
  return dataset;
}

ImageShape shape_of(const ImageDataset& images) {
  return {images.channels(), images.height(), images.width()};
}

}  // namespace

ImageSamples::ImageSamples(ImageDataset images, const ImageSamplesOptions& options)
    : images_(readable(std::move(images))),
      channels_last_(options.channels_last),
      transform_(std::make_shared<const ImageTransform>(shape_of(images_), options)) {}

std::vector<at::Tensor> ImageSamples::batch(std::span<const std::int64_t> indices,
                                            std::int64_t epoch) const {
  const auto* const images = images_.images.data_ptr<std::uint8_t>();
  const auto* const labels = images_.labels.data_ptr<std::int64_t>();
  const ImageShape shape = shape_of(images_);
  return make_image_batch(indices, shape, channels_last_, [&](std::int64_t index, float* out) {
    transform_->apply(images + index * shape.pixels(), out, epoch, index);
    return labels[index];
  });
}

}  // namespace paceline::data
