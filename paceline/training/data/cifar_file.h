#pragma once

// CIFAR-10's binary version: records of a label and 3 planes of 32x32 bytes.

#include <cstdint>
#include <span>
#include <string>

namespace paceline::data {

inline constexpr std::int64_t kCifarImage = 3 * 32 * 32;

// How many records the file has. Errors as in image_dataset.h.
std::int64_t count_cifar_records(const std::string& path);

// Reads the first labels.size() records: `images` gets kCifarImage bytes of each. Errors as in
// image_dataset.h, kCorrupt also for a label that is not below num_classes.
void read_cifar_records(const std::string& path, std::size_t num_classes,
                        std::span<std::uint8_t> images, std::span<std::int64_t> labels);

}  // namespace paceline::data
