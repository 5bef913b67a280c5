#pragma once

// Image files for the tests, written directly with libjpeg-turbo and libpng.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/files/images/image.h"

namespace paceline::images {

// Smooth colours with edges and some noise; the same image for the same size.
Image sample_image(Size size);

struct JpegForm {
  int quality = 90;
  int sampling_x = 2, sampling_y = 2;  // samples of the brightness for one sample of a colour
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

// A chunk of a PNG; and a PNG with more chunks before and after its pixels.
std::string png_chunk(const std::string& type, const std::string& data);
std::string with_chunks(const std::string& png, const std::string& before,
                        const std::string& behind);
// Packs the text as zlib does.
std::string packed(const std::string& text);

// EXIF data: "Exif", two zero bytes and a TIFF with only the orientation; little-endian unless
// `big_endian`.
std::string exif_of(int orientation, bool big_endian = false);

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace paceline::images
