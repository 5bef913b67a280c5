#pragma once

// What a library of one format does for EncodedImage. jpeg_codec.cpp and png_codec.cpp are built
// where libjpeg-turbo and libpng were found, no_codecs.cpp where not.
//
// Both libraries report an error by a jump out of themselves. Each call of theirs is therefore
// inside a function whose locals need no destructor, and the exception is thrown after the jump has
// landed.
//
// Thread safety: none.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "paceline/files/images/image.h"

namespace paceline::images {

class Codec {
 public:
  virtual ~Codec() = default;
  // The size as the file stores it, before its orientation.
  virtual Size size() const = 0;
  virtual int orientation() const = 0;  // 1 to 8, as EXIF numbers them
  // The library can decode to 1/2, 1/4 and 1/8 of the size.
  virtual bool can_reduce() const = 0;
  // A part of the image of 1/reduction of the size, rounded up. Requires: the region is inside.
  virtual Image read(const Region& region, int reduction) = 0;
};

// Parse the header. `bytes` must outlive the codec; `name` is for messages. Error(kCorrupt).
std::unique_ptr<Codec> open_jpeg(std::span<const std::byte> bytes, const std::string& name);
std::unique_ptr<Codec> open_png(std::span<const std::byte> bytes, const std::string& name);

}  // namespace paceline::images
