#pragma once

// How much of an image file is accepted.
//
// Thread safety: a value.

#include <cstdint>

namespace paceline::images {

struct DecodeOptions {
  std::int64_t max_pixels = 178'956'970;      // Pillow's limit as well
  std::int64_t max_file_bytes = 256LL << 20;  // the longest file
  bool exif_transpose = true;  // turn by EXIF or XMP, unlike torchvision's ImageFolder
};

}  // namespace paceline::images
