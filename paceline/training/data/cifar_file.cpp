#include "paceline/training/data/cifar_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <vector>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/file_start.h"

namespace paceline::data {
namespace {

constexpr std::int64_t kRecord = 1 + kCifarImage;
constexpr std::int64_t kRecordsAtOnce = 256;  // they are copied while they are in the cache

}  // namespace

std::int64_t count_cifar_records(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  check(std::filesystem::is_directory(folder), "the data folder {} does not exist", folder);
  check(std::filesystem::is_regular_file(path),
        "the data folder {} has no {}; CIFAR-10's binary version is needed", folder,
        std::filesystem::path(path).filename().string());
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  check(size > 0, "{} is empty", path);
  if (size % kRecord != 0) {
    std::array<char, 256> head;
    std::ifstream file(path, std::ios::binary);
    file.read(head.data(), head.size());
    const std::string_view mistaken = mistaken_file(
        std::as_bytes(std::span(head).first(static_cast<std::size_t>(file.gcount()))));
    if (!mistaken.empty()) fail(ErrorCode::kCorrupt, "{}: {}", path, mistaken);
    fail(ErrorCode::kCorrupt, "{}: ends at byte {}, in the middle of a record of {} bytes", path,
         size, kRecord);
  }
  return size / kRecord;
}

void read_cifar_records(const std::string& path, std::size_t num_classes,
                        std::span<std::uint8_t> images, std::span<std::int64_t> labels) {
  std::vector<char> buffer(static_cast<std::size_t>(kRecordsAtOnce * kRecord));
  std::ifstream file(path, std::ios::binary);
  const std::int64_t count = std::ssize(labels);
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % kRecordsAtOnce == 0) {
      file.read(buffer.data(), std::min(kRecordsAtOnce, count - i) * kRecord);
      check(file.good(), "{} cannot be read", path);
    }
    const char* record = buffer.data() + i % kRecordsAtOnce * kRecord;
    const auto label = static_cast<unsigned char>(record[0]);
    if (label >= num_classes) {
      fail(ErrorCode::kCorrupt, "{}: byte {}: the label {} is not in [0, {})", path, i * kRecord,
           label, num_classes);
    }
    labels[static_cast<std::size_t>(i)] = label;
    std::memcpy(images.data() + i * kCifarImage, record + 1, kCifarImage);
  }
}

}  // namespace paceline::data
