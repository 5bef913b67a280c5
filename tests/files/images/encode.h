#pragma once

// Files for the tests, written by libjpeg-turbo and libpng themselves.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/files/images/image.h"

namespace paceline::images {

// Smooth colours with edges and some noise; the same for the same size.
Image sample_image(Size size);

struct JpegForm {
  int quality = 90;
  int sampling_x = 2, sampling_y = 2;  // of the brightness, by that of the colours
  bool progressive = false;
  int components = 3;   // 1: grey; 4: CMYK
  int orientation = 0;  // 0: no EXIF
};
std::string jpeg_of(const Image& image, const JpegForm& form = {});

struct PngForm {
  bool interlaced = false;
  int bits = 8;
  bool grey = false, alpha = false;
  int orientation = 0;
};
std::string png_of(const Image& image, const PngForm& form = {});
// A PNG that is only a header, for any size.
std::string png_header(std::uint32_t width, std::uint32_t height);

// A chunk of a PNG, and a PNG with some more before its pixels and behind them.
std::string png_chunk(const std::string& type, const std::string& data);
std::string with_chunks(const std::string& png, const std::string& before,
                        const std::string& behind);
// Packs the text as zlib does.
std::string packed(const std::string& text);

// "Exif", 0, 0 and a TIFF with the one tag; `big_endian` in the other order of bytes.
std::string exif_of(int orientation, bool big_endian = false);

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace paceline::images
