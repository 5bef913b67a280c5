#include "paceline/files/images/resample.h"

#include <cmath>

#include "paceline/engine/core/error.h"
#include "paceline/files/images/resample_rows.h"

#include "tests/files/images/encode.h"
#include "tests/harness/expect_error.h"

namespace paceline::images {
namespace {

TEST(Resample, the_same_size_is_the_same_image) {
  for (const Size size : {Size{1, 1}, Size{31, 17}}) {
    const Image image = sample_image(size);
    EXPECT_TRUE(resize(image, size) == image);
  }
}

TEST(Resample, the_weights_of_every_pixel_add_up_to_one) {
  for (const int from : {1, 2, 3, 10, 333, 5000}) {
    for (const int to : {1, 2, 7, 224, 1000}) {
      const AxisPlan plan = plan_axis(from, 0, from, to, 0, to);
      for (int i = 0; i < to; ++i) {
        std::int64_t sum = 0;
        for (int tap = 0; tap < plan.num_taps; ++tap)
          sum += plan.weights[static_cast<std::size_t>(i * plan.num_taps + tap)];
        EXPECT_NEAR(static_cast<double>(sum), 1 << 22, plan.num_taps);
      }
      EXPECT_EQ(plan.first_input, 0);
      EXPECT_EQ(plan.end_input, from);
    }
  }
}

TEST(Resample, a_plain_area_stays_as_it_is) {
  for (const int value : {0, 1, 128, 255}) {
    Image image({37, 21});
    std::ranges::fill(image.bytes(), static_cast<std::uint8_t>(value));
    for (const Size size : {Size{5, 90}, Size{100, 3}, Size{36, 20}}) {
      const Image seen = resize(image, size);
      for (const auto byte : seen.bytes()) ASSERT_EQ(byte, value);
    }
  }
}

TEST(Resample, a_window_has_the_pixels_of_the_whole) {
  const Image image = sample_image({83, 61});
  const Image whole = resize(image, {40, 77});
  const Region window{7, 13, 20, 31};
  const AxisPlan columns = plan_axis(83, 0, 83, 40, window.x, window.width);
  const AxisPlan rows = plan_axis(61, 0, 61, 77, window.y, window.height);
  Image part({columns.end_input - columns.first_input, rows.end_input - rows.first_input});
  for (int y = 0; y < part.height(); ++y) {
    std::copy_n(image.row(rows.first_input + y) + 3 * columns.first_input, part.row_bytes(),
                part.row(y));
  }
  const Image seen = resample(part, columns.first_input, rows.first_input, columns, rows);
  ASSERT_EQ(seen.size(), (Size{20, 31}));
  for (int y = 0; y < 31; ++y) {
    EXPECT_TRUE(std::equal(seen.row(y), seen.row(y) + seen.row_bytes(),
                           whole.row(window.y + y) + 3 * window.x));
  }
}

TEST(Resample, both_kernels_give_the_same_bytes) {
#ifdef __x86_64__
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no instructions for it";
  const Image image = sample_image({97, 3});
  const AxisPlan plan = plan_axis(97, 0, 97, 41, 0, 41);
  std::vector<std::uint8_t> rows[2][2], columns[2];
  for (const int variant : {0, 1}) {
    const RowKernels& kernels = variant == 0 ? portable::kRowKernels : avx2::kRowKernels;
    for (auto& row : rows[variant]) row.resize(41 * 3 + 1);
    kernels.along_rows(image.row(0), image.row(1), rows[variant][0].data(), rows[variant][1].data(),
                       plan.begins.data(), plan.counts.data(), plan.weights.data(), plan.num_taps,
                       41);
    columns[variant].resize(97 * 3);
    const std::int32_t weights[] = {1 << 20, 1 << 21, 1 << 20};
    kernels.along_columns(image.row(0), image.row_bytes(), weights, 3, columns[variant].data(),
                          97 * 3);
  }
  EXPECT_EQ(rows[0][0], rows[1][0]);
  EXPECT_EQ(rows[0][1], rows[1][1]);
  EXPECT_EQ(columns[0], columns[1]);
#endif
}

TEST(Resample, an_empty_size_is_refused) {
  expect_error(ErrorCode::kInvalid, {"resize", "0 x 3"}, [] {
    resize(sample_image({2, 2}), {0, 3});
  });
}

}  // namespace
}  // namespace paceline::images
