#include "paceline/training/data/transform.h"

#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

namespace paceline::data {
namespace {

constexpr ImageShape kShape{2, 3, 4};
constexpr std::size_t kPixels = 24;

std::vector<std::uint8_t> ramp() {
  std::vector<std::uint8_t> image(kPixels);
  std::iota(image.begin(), image.end(), std::uint8_t{1});
  return image;
}

std::vector<float> applied(ImageSamplesOptions options, std::int64_t epoch, std::int64_t index,
                           bool channels_last = false, std::uint64_t seed = 0) {
  std::vector<float> out(kPixels, -1.0F);
  options.channels_last = channels_last;
  options.seed = seed;
  ImageTransform(kShape, options).apply(ramp().data(), out.data(), epoch, index);
  return out;
}

// The pixels, computed from the definition, of a crop that starts at (down, right) and is mirrored
// if `flip`.
std::vector<float> expected(std::int64_t down, std::int64_t right, bool flip) {
  const auto image = ramp();
  std::vector<float> out;
  for (std::int64_t c = 0; c < 2; ++c) {
    for (std::int64_t y = 0; y < 3; ++y) {
      for (std::int64_t x = 0; x < 4; ++x) {
        const auto sy = y + down, sx = (flip ? 3 - x : x) + right;
        const bool inside = sy >= 0 && sy < 3 && sx >= 0 && sx < 4;
        out.push_back(
            inside ? static_cast<float>(image[static_cast<std::size_t>((c * 3 + sy) * 4 + sx)]) /
                         255.0F
                   : 0.0F);
      }
    }
  }
  return out;
}

TEST(Transform, normalises_exactly_as_the_formula_in_float32) {
  const auto out = applied({.mean = {0.5F, 0.25F}, .std = {0.2F, 0.4F}}, 0, 0);
  for (std::size_t i = 0; i < kPixels; ++i) {
    const float scaled = static_cast<float>(i + 1) / 255.0F;
    EXPECT_EQ(out[i], i < 12 ? (scaled - 0.5F) / 0.2F : (scaled - 0.25F) / 0.4F);
  }
}

TEST(Transform, every_crop_and_flip_comes_and_is_what_its_definition_says) {
  std::set<std::vector<float>> seen;
  for (std::int64_t index = 0; index < 2000; ++index) {
    seen.insert(applied({.crop_padding = 2, .random_flip = true}, 0, index));
  }
  std::set<std::vector<float>> possible;
  for (std::int64_t down = -2; down <= 2; ++down) {
    for (std::int64_t right = -2; right <= 2; ++right) {
      for (const bool flip : {false, true}) possible.insert(expected(down, right, flip));
    }
  }
  EXPECT_EQ(seen, possible);
}

TEST(Transform, channels_last_holds_the_same_image) {
  const ImageSamplesOptions options{.crop_padding = 1, .random_flip = true};
  for (std::int64_t index = 0; index < 100; ++index) {
    const auto first = applied(options, 1, index);
    const auto last = applied(options, 1, index, true);
    for (std::size_t c = 0; c < 2; ++c) {
      for (std::size_t p = 0; p < 12; ++p) EXPECT_EQ(first[c * 12 + p], last[p * 2 + c]);
    }
  }
}

TEST(Transform, the_draw_follows_from_seed_epoch_and_index_alone) {
  const ImageSamplesOptions options{.crop_padding = 2, .random_flip = true};
  int same_epoch = 0, same_seed = 0;
  for (std::int64_t index = 0; index < 500; ++index) {
    EXPECT_EQ(applied(options, 3, index), applied(options, 3, index));
    same_epoch += applied(options, 3, index) == applied(options, 4, index);
    same_seed += applied(options, 3, index) == applied(options, 3, index, false, 1);
  }
  // One draw in fifty is the same by chance.
  EXPECT_LT(same_epoch, 40);
  EXPECT_LT(same_seed, 40);
}

TEST(Transform, half_of_the_images_are_flipped) {
  const auto plain = expected(0, 0, false);
  int flipped = 0;
  for (std::int64_t index = 0; index < 10'000; ++index) {
    flipped += applied({.random_flip = true}, 0, index) != plain;
  }
  EXPECT_NEAR(flipped, 5000, 250);
}

TEST(Transform, an_option_that_does_not_fit_is_refused) {
  const auto refused = [](const ImageSamplesOptions& options) {
    EXPECT_THROW(ImageTransform(kShape, options), Error);
  };
  refused({.mean = {0.5F}});
  refused({.std = {1, 1, 1}});
  refused({.std = {1, 0}});
  refused({.crop_padding = -1});
}

}  // namespace
}  // namespace paceline::data
