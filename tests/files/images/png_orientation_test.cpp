// Every place in a PNG that can hold an orientation. images_parity_test.cpp compares the same
// places with Pillow.

#include <gtest/gtest.h>

#include "paceline/files/images/encoded_image.h"

#include "tests/files/images/encode.h"

namespace paceline::images {
namespace {

using namespace std::string_literals;

std::string text_chunk(const std::string& keyword, const std::string& text) {
  return png_chunk("tEXt", keyword + '\0' + text);
}

std::string packed_chunk(const std::string& keyword, const std::string& text) {
  return png_chunk("zTXt", keyword + "\0\0"s + packed(text));
}

std::string international_chunk(const std::string& keyword, const std::string& text,
                                bool is_packed = false) {
  return png_chunk("iTXt", keyword + (is_packed ? "\0\1\0\0\0"s : "\0\0\0\0\0"s) +
                               (is_packed ? packed(text) : text));
}

// A raw profile as ImageMagick writes it, in lines of 36 bytes.
std::string profile(const std::string& bytes) {
  std::string text = "\nexif\n      " + std::to_string(bytes.size()) + "\n";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    text += "0123456789abcdef"[static_cast<unsigned char>(bytes[i]) >> 4];
    text += "0123456789abcdef"[bytes[i] & 15];
    if (i % 36 == 35) text += '\n';
  }
  return text + '\n';
}

std::string xmp(const std::string& orientation) {
  return "<x:xmpmeta><rdf:Description " + orientation + "></x:xmpmeta>";
}

std::string exif_chunk(int orientation) {
  return png_chunk("eXIf", exif_of(orientation).substr(6));
}

std::string damaged(std::string chunk) {
  chunk.back() = static_cast<char>(chunk.back() ^ 1);  // a byte of the checksum
  return chunk;
}

TEST(PngOrientation, is_found_in_every_place_before_and_behind_the_pixels) {
  constexpr const char* kProfile = "Raw profile type exif";
  constexpr const char* kXmp = "XML:com.adobe.xmp";
  const std::string exif = exif_of(6), attribute = xmp("tiff:Orientation=\"6\""),
                    element = xmp("<tiff:Orientation>6</tiff:Orientation>");
  const std::string large = packed_chunk(kXmp, std::string((1 << 20) - 9, ' '));
  std::string crowd;  // texts that together unpack to almost 64 MiB
  for (int i = 0; i < 64; ++i) crowd += large;
  const std::string no_tag("MM\0*\0\0\0\x08\0\0\0\0\0\0", 14);
  struct Case {
    const char* what;
    std::string chunks;
    int orientation = 6;
  };
  const std::vector<Case> cases = {
      {"nothing", "", 1},
      {"eXIf", exif_chunk(6)},
      {"eXIf that begins with Exif", png_chunk("eXIf", exif)},
      {"two eXIf: the last one", exif_chunk(3) + exif_chunk(6)},
      {"eXIf with a damaged checksum", damaged(exif_chunk(6)), 1},
      {"eXIf with the value 9", exif_chunk(9), 1},
      {"tEXt exif", text_chunk("exif", exif)},
      {"zTXt exif", packed_chunk("exif", exif), 1},
      {"tEXt profile", text_chunk(kProfile, profile(exif))},
      {"zTXt profile", packed_chunk(kProfile, profile(exif))},
      {"iTXt profile", international_chunk(kProfile, profile(exif))},
      {"packed iTXt profile", international_chunk(kProfile, profile(exif), true)},
      {"profile in capitals", text_chunk(kProfile, "\nexif\n4\n4D4D002A00000008000101120003" +
                                                       "0000000100060000"s + "00000000")},
      {"profile with a letter that is no digit", text_chunk(kProfile, "\nexif\n4\n4d4dXX"), 1},
      {"profile of one line", text_chunk(kProfile, "4d4d"), 1},
      {"another profile", text_chunk("Raw profile type xmp", profile(exif)), 1},
      {"eXIf before a profile", exif_chunk(6) + text_chunk(kProfile, profile(exif_of(3)))},
      {"profile before eXIf", text_chunk(kProfile, profile(exif_of(3))) + exif_chunk(6)},
      {"iTXt XMP attribute", international_chunk(kXmp, attribute)},
      {"iTXt XMP element", international_chunk(kXmp, element)},
      {"packed iTXt XMP", international_chunk(kXmp, attribute, true)},
      {"tEXt XMP", text_chunk(kXmp, attribute)},
      {"zTXt XMP", packed_chunk(kXmp, element)},
      {"XMP with single quotes", text_chunk(kXmp, xmp("tiff:Orientation='6'")), 1},
      {"XMP with the value 9", text_chunk(kXmp, xmp("tiff:Orientation=\"9\"")), 1},
      {"XMP: the first that has a digit",
       text_chunk(kXmp, xmp("tiff:Orientation=\"x\" tiff:Orientation=\"6\"") + element)},
      {"two XMP: the last",
       text_chunk(kXmp, xmp("tiff:Orientation=\"3\"")) + text_chunk(kXmp, attribute)},
      {"EXIF before XMP", text_chunk(kXmp, xmp("tiff:Orientation=\"3\"")) + exif_chunk(6)},
      {"EXIF of 1 before XMP", text_chunk(kXmp, attribute) + exif_chunk(1), 1},
      {"EXIF without the tag, XMP", png_chunk("eXIf", no_tag) + text_chunk(kXmp, attribute)},
      {"another keyword", text_chunk("Comment", attribute), 1},
      {"a text without a keyword", png_chunk("tEXt", attribute), 1},
      {"zTXt by an unknown method", png_chunk("zTXt", kXmp + "\0\1"s + packed(attribute)), 1},
      {"zTXt that is damaged", png_chunk("zTXt", kXmp + "\0\0nonsense"s), 1},
      {"zTXt that unpacks to 2 MiB", packed_chunk(kXmp, attribute + std::string(2 << 20, ' ')), 1},
      {"zTXt that unpacks to 1 MiB", packed_chunk(kXmp, attribute + std::string(1040000, ' '))},
      {"zTXt behind 63 MiB of them", crowd.substr(large.size()) + packed_chunk(kXmp, attribute)},
      {"zTXt behind 64 MiB of them",
       crowd + packed_chunk(kXmp, attribute + attribute + xmp(std::string(600, ' '))), 1},
      {"iTXt that is cut", png_chunk("iTXt", kXmp + "\0\0"s), 1}};
  const Image image = sample_image({5, 3});
  const std::string png = png_of(image);
  for (const Case& one : cases) {
    EXPECT_EQ(png_orientation(bytes_of(with_chunks(png, one.chunks, ""))), one.orientation)
        << one.what;
    const std::string behind = with_chunks(png, "", one.chunks);
    EXPECT_EQ(png_orientation(bytes_of(behind)), one.orientation) << one.what << ", behind";
    EXPECT_EQ(EncodedImage(bytes_of(behind), "a.png").size(),
              (one.orientation == 6 ? Size{3, 5} : Size{5, 3}))
        << one.what;
  }
}

TEST(PngOrientation, a_file_that_is_cut_anywhere_is_read_to_its_end_only) {
  const std::string png = with_chunks(png_of(sample_image({5, 3})), "", exif_chunk(6));
  for (std::size_t size = 0; size <= png.size(); ++size) {
    const int found = png_orientation(bytes_of(png.substr(0, size)));
    // Only the end chunk follows the EXIF.
    EXPECT_EQ(found, size >= png.size() - 12 ? 6 : 1) << size;
  }
}

}  // namespace
}  // namespace paceline::images
