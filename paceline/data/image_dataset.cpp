#include "paceline/data/image_dataset.h"

#include <cstring>
#include <filesystem>
#include <fstream>

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

std::vector<char> read_cifar_file(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  check(std::filesystem::is_directory(folder), "the data folder {} does not exist", folder);
  std::ifstream file(path, std::ios::binary);
  check(file.good(), "the data folder {} has no {}; CIFAR-10's binary version is needed", folder,
        std::filesystem::path(path).filename().string());
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  check(!bytes.empty(), "{} is empty", path);
  if (bytes.size() % kCifarRecord != 0) {
    fail(ErrorCode::kCorrupt, "{}: ends at byte {}, in the middle of a record of {} bytes", path,
         bytes.size(), kCifarRecord);
  }
  return bytes;
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
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> labels;
  for (const auto& path : paths) {
    const auto bytes = read_cifar_file(path);
    const auto count = static_cast<std::int64_t>(bytes.size()) / kCifarRecord;
    images.push_back(at::empty({count, 3, 32, 32}, at::kByte));
    labels.push_back(at::empty({count}, at::kLong));
    for (std::int64_t i = 0; i < count; ++i) {
      const char* record = bytes.data() + i * kCifarRecord;
      const int label = static_cast<unsigned char>(record[0]);
      require_label(label, dataset.classes.size(), path, i * kCifarRecord);
      labels.back().data_ptr<std::int64_t>()[i] = label;
      std::memcpy(images.back().data_ptr<std::uint8_t>() + i * kCifarImage, record + 1,
                  kCifarImage);
    }
  }
  dataset.images = at::cat(images);
  dataset.labels = at::cat(labels);
  return dataset;
}

}  // namespace paceline::data
