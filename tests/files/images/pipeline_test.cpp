#include <cmath>
#include <numeric>
#include <set>

#include "paceline/engine/core/error.h"
#include "paceline/files/images/image_pipeline.h"
#include "paceline/files/images/resample.h"

#include "tests/files/images/encode.h"
#include "tests/harness/expect_error.h"

namespace paceline::images {
namespace {

using Values = std::vector<float>;

const Range kArea = ImagePipelineOptions().crop_area, kAspect = ImagePipelineOptions().crop_aspect;

Values applied(const std::string& file, const ImagePipelineOptions& options, std::int64_t epoch,
               std::int64_t index, std::uint64_t seed = 0, bool channels_last = false) {
  const ImagePipeline pipeline(options, seed);
  Values out(static_cast<std::size_t>(pipeline.num_values()), -9.0F);
  pipeline.apply(bytes_of(file), "a.jpg", out.data(), channels_last, epoch, index);
  return out;
}

const ImagePipelineOptions kAllAtRandom{.size = {24, 20},
                                        .framing = Framing::kRandomResizedCrop,
                                        .flip_probability = 0.5,
                                        .jitter = {0.4, 0.4, 0.4, 0.1},
                                        .erasing = {.probability = 0.5, .with_noise = true}};

TEST(ImagePipeline, what_is_random_follows_from_seed_epoch_and_index_alone) {
  const std::string file = jpeg_of(sample_image({90, 70}));
  std::set<Values> seen;
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    for (std::int64_t index = 0; index < 5; ++index) {
      for (const std::uint64_t seed : {0, 7}) {
        const Values values = applied(file, kAllAtRandom, epoch, index, seed);
        EXPECT_EQ(values, applied(file, kAllAtRandom, epoch, index, seed));
        seen.insert(values);
      }
    }
  }
  EXPECT_EQ(seen.size(), 50U);
}

TEST(ImagePipeline, channels_last_holds_the_same_values) {
  const std::string file = jpeg_of(sample_image({90, 70}));
  for (std::int64_t index = 0; index < 8; ++index) {
    const Values planes = applied(file, kAllAtRandom, 0, index);
    const Values last = applied(file, kAllAtRandom, 0, index, 0, true);
    ASSERT_EQ(planes.size(), last.size());
    // Both layouts draw the noise plane by plane.
    for (std::size_t pixel = 0; pixel < 480; ++pixel) {
      for (std::size_t channel = 0; channel < 3; ++channel)
        ASSERT_EQ(planes[channel * 480 + pixel], last[pixel * 3 + channel]);
    }
  }
}

TEST(ImagePipeline, half_of_the_images_are_mirrored) {
  const Image image = sample_image({8, 6});
  const std::string file = png_of(image);
  const ImagePipelineOptions options{
      .size = {8, 6}, .framing = Framing::kWhole, .flip_probability = 0.5};
  int mirrored = 0;
  for (std::int64_t index = 0; index < 2000; ++index) {
    const Values values = applied(file, options, 0, index);
    const bool is_mirrored = values[0] != static_cast<float>(image.row(0)[0]) / 255.0F;
    for (int x = 0; x < 8; ++x) {
      EXPECT_EQ(values[static_cast<std::size_t>(x)],
                static_cast<float>(image.row(0)[3 * (is_mirrored ? 7 - x : x)]) / 255.0F);
    }
    mirrored += is_mirrored;
  }
  EXPECT_NEAR(mirrored, 1000, 120);
}

TEST(ImagePipeline, a_random_crop_is_the_resized_part_that_was_drawn) {
  const Image image = sample_image({90, 70});
  const std::string file = png_of(image);
  const ImagePipeline pipeline({.size = {24, 20}, .framing = Framing::kRandomResizedCrop});
  for (std::int64_t index = 0; index < 50; ++index) {
    SampleRandom random(0, 0, index), again(0, 0, index);
    const Image seen = pipeline.framed(bytes_of(file), "a.png", random);
    const Region region = random_resized_crop({90, 70}, kArea, kAspect, again);
    EXPECT_TRUE(seen == resize(EncodedImage(bytes_of(file), "a.png").decode(region), {24, 20}));
  }
}

// The tolerances, for every subsampling of the colours: a mean of 3 of 255 if
// edges are several pixels apart, and of 15 for stripes that are just too fine for the reduced
// size.
TEST(ImagePipeline, a_reduced_decode_is_close_to_the_exact_one) {
  Image stripes({1200, 900});
  for (int y = 0; y < stripes.height(); ++y) {
    for (int x = 0; x < stripes.width(); ++x) {
      std::uint8_t* pixel = stripes.row(y) + 3 * x;
      pixel[0] = x / 5 % 2 == 0 ? 0 : 255;
      pixel[2] = static_cast<std::uint8_t>(255 - pixel[0]);
    }
  }
  const auto difference = [](const std::string& file, double gap, std::int64_t index) {
    ImagePipelineOptions options{
        .size = {56, 48}, .framing = Framing::kRandomResizedCrop, .reducing_gap = gap};
    options.crop_area.low = 0.3;
    const Values reduced = applied(file, options, 0, index);
    options.reducing_gap = 0;
    const Values exact = applied(file, options, 0, index);
    double sum = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) sum += std::abs(reduced[i] - exact[i]);
    return 255 * sum / static_cast<double>(exact.size());
  };
  const Image edges = sample_image({1200, 900});
  for (const auto& [x, y] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}}) {
    for (const bool fine : {false, true}) {
      const JpegForm form{.quality = 95, .sampling_x = x, .sampling_y = y};
      const std::string file = jpeg_of(fine ? stripes : edges, form);
      for (const double gap : {1.0, 2.0}) {
        for (std::int64_t index = 0; index < 3; ++index) {
          const double found = difference(file, gap, index);
          EXPECT_GT(found, 0);  // it was reduced
          EXPECT_LT(found, fine ? 15 : 3) << x << "x" << y << ", gap " << gap;
        }
      }
    }
  }
}

TEST(ImagePipeline, a_centre_crop_beyond_the_image_is_black_there) {
  const std::string file = png_of(sample_image({10, 10}));
  const Values values = applied(file, {.size = {14, 8}, .shorter_side = 10}, 0, 0);
  for (std::size_t y = 0; y < 8; ++y) {
    for (const std::size_t x : {0, 1, 12, 13}) EXPECT_EQ(values[y * 14 + x], 0.0F);
    EXPECT_GT(values[8 * 14 + y * 14 + 7], 0.0F);
  }
}

TEST(ImagePipeline, an_image_of_one_row_is_framed_without_taking_memory_for_its_resized_width) {
  Image image({60'000, 1});
  std::ranges::fill(image.bytes(), std::uint8_t{255});
  const Values values = applied(png_of(image), {.size = {32, 32}, .shorter_side = 20'000}, 0, 0);
  EXPECT_EQ(values, Values(3 * 32 * 32, 1.0F));
}

TEST(Crop, every_random_part_lies_in_the_image_and_has_the_asked_area_and_aspect) {
  for (const Size size : {Size{500, 375}, Size{1, 1}, Size{3, 1000}, Size{1000, 3}}) {
    for (std::int64_t index = 0; index < 2000; ++index) {
      SampleRandom random(1, 2, index);
      const Region region = random_resized_crop(size, kArea, kAspect, random);
      ASSERT_GT(region.width, 0);
      ASSERT_GT(region.height, 0);
      ASSERT_LE(region.x + region.width, size.width);
      ASSERT_LE(region.y + region.height, size.height);
      ASSERT_GE(region.x, 0);
      ASSERT_GE(region.y, 0);
      if (size.width != 500) continue;
      const double area = region.width * region.height / (500.0 * 375.0);
      EXPECT_GT(area, 0.078);
      EXPECT_NEAR(std::log(static_cast<double>(region.width) / region.height), 0, 0.31);
    }
  }
}

TEST(Crop, what_fits_no_aspect_takes_the_middle) {
  SampleRandom random(1);
  const Range most{0.9, 1};
  EXPECT_EQ(random_resized_crop({1000, 3}, most, kAspect, random), (Region{498, 0, 4, 3}));
  EXPECT_EQ(random_resized_crop({3, 1000}, most, kAspect, random), (Region{0, 498, 3, 4}));
}

TEST(SampleRandom, beta_has_the_mean_and_variance_of_its_definition) {
  for (const double a : {0.2, 1.0, 3.0}) {
    double sum = 0, squares = 0;
    constexpr int kDraws = 40'000;
    for (int i = 0; i < kDraws; ++i) {
      const double value = SampleRandom(5, 0, i).beta(a);
      EXPECT_GE(value, 0);
      EXPECT_LE(value, 1);
      sum += value;
      squares += value * value;
    }
    const double mean = sum / kDraws;
    EXPECT_NEAR(mean, 0.5, 0.01);
    EXPECT_NEAR(squares / kDraws - mean * mean, 1 / (4 * (2 * a + 1)), 0.005) << a;
  }
}

TEST(ImagePipeline, an_option_that_does_not_fit_is_refused) {
  const auto refused = [](const ImagePipelineOptions& options) {
    expect_error(ErrorCode::kInvalid, {"image pipeline"}, [&] { ImagePipeline{options}; });
  };
  refused({.size = {0, 8}});
  refused({.shorter_side = 0});
  refused({.crop_area = {0, 1}});
  refused({.crop_aspect = {2, 1}});
  refused({.flip_probability = 1.5});
  refused({.jitter = {.hue = 0.6}});
  refused({.jitter = {.brightness = -1}});
  refused({.erasing = {.probability = NAN}});
  refused({.mean = {0.5F}});
  refused({.std = {1, 0, 1}});
  refused({.reducing_gap = 0.5});
}

}  // namespace
}  // namespace paceline::images
