#include "tests/files/images/encode.h"

#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

namespace paceline::images {
namespace {

std::string big_endian(std::uint32_t value, int bytes = 4) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string header_chunk(std::uint32_t width, std::uint32_t height) {
  return png_chunk("IHDR",
                   big_endian(width) + big_endian(height) + std::string("\x08\x02\0\0\0", 5));
}

}  // namespace

std::string png_chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const auto sum =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + body +
         big_endian(static_cast<std::uint32_t>(sum));
}

std::string with_chunks(const std::string& png, const std::string& before,
                        const std::string& behind) {
  constexpr std::size_t kLength = 4;
  std::string file = png;
  file.insert(file.rfind("IEND") - kLength, behind);
  return file.insert(file.find("IDAT") - kLength, before);
}

std::string packed(const std::string& text) {
  uLongf size = compressBound(text.size());
  std::string bytes(size, '\0');
  compress(reinterpret_cast<Bytef*>(bytes.data()), &size,
           reinterpret_cast<const Bytef*>(text.data()), text.size());
  bytes.resize(size);
  return bytes;
}

Image sample_image(Size size) {
  Image image(size);
  std::uint32_t noise = 1;
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) {
      noise = noise * 1664525u + 1013904223u;
      std::uint8_t* pixel = image.row(y) + 3 * x;
      const bool edge = (x / 11 + y / 7) % 2 == 0;
      pixel[0] = static_cast<std::uint8_t>(x * 255 / std::max(1, size.width - 1));
      pixel[1] = static_cast<std::uint8_t>(edge ? 200 : y % 256);
      pixel[2] = static_cast<std::uint8_t>((x * y + (noise >> 27)) % 256);
    }
  }
  return image;
}

std::string exif_of(int orientation, bool big_endian) {
  std::string text("Exif\0\0", 6);
  const auto tag = static_cast<char>(orientation);
  text += big_endian ? std::string("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", 19) + tag
                     : std::string("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0", 18) + tag +
                           std::string(1, '\0');
  return text + std::string(6, '\0');
}

std::string jpeg_of(const Image& image, const JpegForm& form) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = static_cast<JDIMENSION>(image.width());
  info.image_height = static_cast<JDIMENSION>(image.height());
  info.input_components = form.components;
  info.in_color_space = form.components == 1   ? JCS_GRAYSCALE
                        : form.components == 4 ? JCS_CMYK
                                               : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, form.quality, TRUE);
  if (form.components == 3) {
    info.comp_info[0].h_samp_factor = form.sampling_x;
    info.comp_info[0].v_samp_factor = form.sampling_y;
  }
  if (form.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  if (form.orientation > 0) {
    const std::string exif = exif_of(form.orientation);
    jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()),
                      static_cast<unsigned>(exif.size()));
  }
  std::vector<std::uint8_t> row(static_cast<std::size_t>(image.width()) * 4);
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < image.width(); ++x) {
      for (int c = 0; c < form.components; ++c) {
        row[static_cast<std::size_t>(x * form.components + c)] = image.row(y)[3 * x + c % 3];
      }
    }
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&info, &pointer, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string file(reinterpret_cast<const char*>(out), size);
  std::free(out);
  return file;
}

std::string png_of(const Image& image, const PngForm& form) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string file;
  png_set_write_fn(
      png, &file,
      [](png_structp writer, png_bytep data, png_size_t size) {
        static_cast<std::string*>(png_get_io_ptr(writer))
            ->append(reinterpret_cast<const char*>(data), size);
      },
      [](png_structp) {});
  const int colours = form.grey ? 1 : 3, samples = colours + (form.alpha ? 1 : 0);
  const int type = (form.grey ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB) |
                   (form.alpha ? PNG_COLOR_MASK_ALPHA : 0);
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.width()),
               static_cast<png_uint_32>(image.height()), form.bits, type,
               form.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::string exif = exif_of(form.orientation).substr(6);
  if (form.orientation > 0)
    png_set_eXIf_1(png, info, static_cast<png_uint_32>(exif.size()),
                   reinterpret_cast<png_bytep>(exif.data()));
  png_write_info(png, info);
  const int bytes = form.bits / 8;
  const auto row_bytes = static_cast<std::size_t>(image.width() * samples * bytes);
  std::vector<std::uint8_t> pixels(row_bytes * static_cast<std::size_t>(image.height()));
  std::vector<png_bytep> rows;
  for (int y = 0; y < image.height(); ++y) {
    std::uint8_t* to = pixels.data() + row_bytes * static_cast<std::size_t>(y);
    rows.push_back(to);
    for (int x = 0; x < image.width(); ++x) {
      for (int c = 0; c < samples; ++c) {
        *to = c < colours ? image.row(y)[3 * x + c] : static_cast<std::uint8_t>(x);
        to += bytes;  // with 16 bits the lower byte stays 0
      }
    }
  }
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

std::string png_header(std::uint32_t width, std::uint32_t height) {
  return "\x89PNG\r\n\x1a\n" + header_chunk(width, height) + png_chunk("IDAT", "x\x9c\x03") +
         png_chunk("IEND", "");
}

}  // namespace paceline::images
