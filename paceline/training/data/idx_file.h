#pragma once

// The IDX format: a big-endian magic number (0, 0, type, number of dimensions), the dimensions, the
// elements. Read whole, also from gzip.

#include <cstdint>
#include <string>
#include <vector>

namespace paceline::data {

struct IdxFile {
  std::string path;  // the file that was found, with or without .gz
  std::vector<std::int64_t> sizes;
  std::vector<std::uint8_t> elements;
};

// Reads `path`, or `path`.gz when there is no such file. Requires elements of type uint8 in
// `num_dims` dimensions. Errors as in image_dataset.h.
IdxFile read_idx(const std::string& path, std::size_t num_dims);

}  // namespace paceline::data
