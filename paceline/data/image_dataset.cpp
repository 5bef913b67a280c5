#include "paceline/data/image_dataset.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <ATen/ATen.h>

#include "paceline/core/check.h"
#include "paceline/data/idx_file.h"

namespace paceline::data {
namespace {

constexpr std::int64_t kIdxLabelHeader = 8;  // bytes before the first label
constexpr std::int64_t kCifarImage = 3 * 32 * 32;
constexpr std::int64_t kCifarRecord = 1 + kCifarImage;

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
  dataset.images = at::empty({images.sizes[0], 1, images.sizes[1], images.sizes[2]}, at::kByte);
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

std::int64_t count_cifar_records(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  check(std::filesystem::is_directory(folder), "the data folder {} does not exist", folder);
  check(std::filesystem::is_regular_file(path),
        "the data folder {} has no {}; CIFAR-10's binary version is needed", folder,
        std::filesystem::path(path).filename().string());
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  check(size > 0, "{} is empty", path);
  if (size % kCifarRecord != 0) {
    fail(ErrorCode::kCorrupt, "{}: ends at byte {}, in the middle of a record of {} bytes", path,
         size, kCifarRecord);
  }
  return size / kCifarRecord;
}

// Fills `dataset` from image number `first` on. `buffer` may have any content and size.
void read_cifar_file(const std::string& path, std::int64_t count, ImageDataset& dataset,
                     std::int64_t first, std::vector<char>& buffer) {
  buffer.resize(static_cast<std::size_t>(count * kCifarRecord));
  std::ifstream file(path, std::ios::binary);
  file.read(buffer.data(), count * kCifarRecord);
  check(file.good(), "{} cannot be read", path);
  auto* const labels = dataset.labels.data_ptr<std::int64_t>() + first;
  auto* const images = dataset.images.data_ptr<std::uint8_t>() + first * kCifarImage;
  for (std::int64_t i = 0; i < count; ++i) {
    const char* record = buffer.data() + i * kCifarRecord;
    labels[i] = static_cast<unsigned char>(record[0]);
    require_label(static_cast<int>(labels[i]), dataset.classes.size(), path, i * kCifarRecord);
    std::memcpy(images + i * kCifarImage, record + 1, kCifarImage);
  }
}

}  // namespace

ImageDataset load_mnist(const std::string& folder, Split split) {
  return load_idx(folder, split, "mnist", {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"});
}

ImageDataset load_fashion_mnist(const std::string& folder, Split split) {
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
  dataset.images = at::empty({total, 3, 32, 32}, at::kByte);
  dataset.labels = at::empty({total}, at::kLong);
  std::vector<char> buffer;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < paths.size(); first += counts[i++]) {
    read_cifar_file(paths[i], counts[i], dataset, first, buffer);
  }
  return dataset;
}

}  // namespace paceline::data
