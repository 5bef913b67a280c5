// Valid files: a decoded part of an image has the same pixels as the whole image.

#include <random>

#include "paceline/engine/core/error.h"
#include "paceline/files/images/encoded_image.h"

#include "tests/files/images/encode.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/random_seed.h"

namespace paceline::images {
namespace {

Image decoded(const std::string& file, const DecodeOptions& options = {}) {
  return EncodedImage(bytes_of(file), "a.jpg", options).decode();
}

bool is_part(const Image& part, const Image& whole, const Region& region) {
  for (int y = 0; y < region.height; ++y) {
    const auto* const own = part.row(y);
    if (!std::equal(own, own + part.row_bytes(), whole.row(region.y + y) + 3 * region.x))
      return false;
  }
  return part.size() == Size{region.width, region.height};
}

void expect_parts_of_the_whole(const std::string& file, const std::string& what) {
  std::mt19937 random(harness::random_seed());
  EncodedImage image(bytes_of(file), what);
  for (const int reduction : {1, 2, 4, 8}) {
    if (reduction > 1 && !image.can_reduce()) break;
    const Size size = image.reduced_size(reduction);
    const Image whole = image.decode({0, 0, size.width, size.height}, reduction);
    for (int i = 0; i < 40; ++i) {
      const auto below = [&](int bound) {
        return static_cast<int>(random() % static_cast<unsigned>(bound));
      };
      Region region{below(size.width), below(size.height), 1, 1};
      region.width = 1 + below(size.width - region.x);
      region.height = 1 + below(size.height - region.y);
      ASSERT_TRUE(is_part(image.decode(region, reduction), whole, region))
          << what << ", 1/" << reduction << ": " << region.width << " x " << region.height
          << " at (" << region.x << ", " << region.y << ")";
    }
  }
}

TEST(DecodeJpeg, every_region_has_the_pixels_of_the_whole) {
  for (const Size size : {Size{1, 1}, Size{17, 33}, Size{130, 97}}) {
    const Image image = sample_image(size);
    for (const auto& [x, y] :
         {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}, {3, 1}, {4, 2}, {2, 4}}) {
      for (const bool progressive : {false, true}) {
        expect_parts_of_the_whole(
            jpeg_of(image, {.sampling_x = x, .sampling_y = y, .progressive = progressive}),
            fmt::format("{} x {}, {}x{}{}", size.width, size.height, x, y,
                        progressive ? ", progressive" : ""));
      }
    }
    expect_parts_of_the_whole(jpeg_of(image, {.components = 1}), "grey");
    expect_parts_of_the_whole(jpeg_of(image, {.components = 4}), "CMYK");
    for (int orientation = 1; orientation <= 8; ++orientation)
      expect_parts_of_the_whole(jpeg_of(image, {.orientation = orientation}), "turned");
  }
}

TEST(DecodeJpeg, colours_of_a_sample_for_eight_pixels_are_not_reduced) {
  const Image image = sample_image({40, 30});
  for (const auto& [x, y] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}}) {
    const std::string file = jpeg_of(image, {.sampling_x = x, .sampling_y = y});
    EXPECT_TRUE(EncodedImage(bytes_of(file), "a.jpg").can_reduce()) << x << "x" << y;
  }
  for (const auto& [x, y] : {std::pair{4, 2}, {2, 4}}) {
    const std::string file = jpeg_of(image, {.sampling_x = x, .sampling_y = y});
    EXPECT_FALSE(EncodedImage(bytes_of(file), "a.jpg").can_reduce()) << x << "x" << y;
  }
}

TEST(DecodePng, every_region_has_the_pixels_of_the_whole) {
  const Image image = sample_image({57, 43});
  for (const bool interlaced : {false, true}) {
    expect_parts_of_the_whole(png_of(image, {.interlaced = interlaced}), "PNG");
    expect_parts_of_the_whole(png_of(image, {.interlaced = interlaced, .orientation = 6}), "PNG");
  }
}

TEST(DecodePng, is_lossless_in_every_form) {
  const Image image = sample_image({57, 43});
  for (const bool interlaced : {false, true}) {
    for (const int bits : {8, 16}) {
      for (const bool alpha : {false, true}) {
        const PngForm form{.interlaced = interlaced, .bits = bits, .alpha = alpha};
        EXPECT_TRUE(decoded(png_of(image, form)) == image);
        PngForm grey = form;
        grey.grey = true;
        const Image seen = decoded(png_of(image, grey));
        for (std::size_t i = 0; i < seen.bytes().size(); ++i)
          ASSERT_EQ(seen.bytes()[i], image.bytes()[i - i % 3]);
      }
    }
  }
}

TEST(DecodeJpeg, a_reduced_image_is_close_to_the_mean_of_its_pixels) {
  const Image smooth = [] {
    Image image({160, 128});
    for (int y = 0; y < 128; ++y) {
      for (int x = 0; x < 160; ++x) {
        image.row(y)[3 * x] = static_cast<std::uint8_t>(x);
        image.row(y)[3 * x + 1] = static_cast<std::uint8_t>(y);
        image.row(y)[3 * x + 2] = 77;
      }
    }
    return image;
  }();
  const std::string file = jpeg_of(smooth, {.quality = 100});
  EncodedImage image(bytes_of(file), "a.jpg");
  for (const int reduction : {2, 4, 8}) {
    const Size size = image.reduced_size(reduction);
    const Image seen = image.decode({0, 0, size.width, size.height}, reduction);
    for (int y = 0; y < size.height; ++y) {
      for (int x = 0; x < size.width; ++x) {
        EXPECT_NEAR(seen.row(y)[3 * x], reduction * (x + 0.5), 4.0);
        EXPECT_NEAR(seen.row(y)[3 * x + 1], reduction * (y + 0.5), 4.0);
      }
    }
  }
}

TEST(Exif, turns_as_each_of_the_eight_orientations_says) {
  const Image image = sample_image({5, 3});
  const auto pixel = [&](int x, int y) { return image.row(y)[3 * x + 2]; };
  const std::vector<std::function<int(int, int)>> shown = {[&](int x, int y) { return pixel(x, y); },
                                                           [&](int x, int y) { return pixel(4 - x, y); },
                                                           [&](int x, int y) { return pixel(4 - x, 2 - y); },
                                                           [&](int x, int y) { return pixel(x, 2 - y); },
                                                           [&](int x, int y) { return pixel(y, x); },
                                                           [&](int x, int y) { return pixel(y, 2 - x); },
                                                           [&](int x, int y) { return pixel(4 - y, 2 - x); },
                                                           [&](int x, int y) { return pixel(4 - y, x); }};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const Image seen = decoded(png_of(image, {.orientation = orientation}));
    ASSERT_EQ(seen.size(), (orientation >= 5 ? Size{3, 5} : Size{5, 3}));
    for (int y = 0; y < seen.height(); ++y) {
      for (int x = 0; x < seen.width(); ++x)
        EXPECT_EQ(seen.row(y)[3 * x + 2], shown[static_cast<std::size_t>(orientation - 1)](x, y))
            << orientation;
    }
    EXPECT_TRUE(decoded(png_of(image, {.orientation = orientation}), {.exif_transpose = false}) ==
                image);
  }
}

TEST(Exif, is_read_in_both_orders_of_bytes_and_ignored_where_it_is_not_in_order) {
  for (const bool big : {false, true}) {
    const std::string tiff = exif_of(6, big).substr(6);
    EXPECT_EQ(orientation_of(bytes_of(tiff)), 6);
    for (std::size_t size = 0; size < 20; ++size)
      EXPECT_EQ(orientation_of(bytes_of(tiff.substr(0, size))), std::nullopt) << size;
  }
  EXPECT_EQ(orientation_of(bytes_of(exif_of(9).substr(6))), 1);
  std::string far = exif_of(6).substr(6);
  far[7] = '\x7f';  // the directory's offset is beyond the end
  EXPECT_EQ(orientation_of(bytes_of(far)), std::nullopt);
  far = exif_of(6).substr(6);
  far[8] = far[9] = '\xff';  // the number of entries exceeds the bytes
  far[10] = 0;
  EXPECT_EQ(orientation_of(bytes_of(far)), std::nullopt);
}

TEST(Decode, a_region_or_a_reduction_that_does_not_fit_is_refused) {
  const std::string png = png_of(sample_image({8, 8})), jpeg = jpeg_of(sample_image({8, 8}));
  EncodedImage image(bytes_of(png), "a.png"), photo(bytes_of(jpeg), "a.jpg");
  for (const Region& region : {Region{0, 0, 9, 1}, {0, 0, 0, 1}, {-1, 0, 1, 1}, {0, 8, 1, 1}})
    expect_error(ErrorCode::kInvalid, {"a.png", "8 x 8"}, [&] { image.decode(region); });
  expect_error(ErrorCode::kInvalid, {"a.png", "1/2"}, [&] { image.decode({0, 0, 1, 1}, 2); });
  expect_error(ErrorCode::kInvalid, {"a.jpg", "1/3"}, [&] { photo.decode({0, 0, 1, 1}, 3); });
}

}  // namespace
}  // namespace paceline::images
