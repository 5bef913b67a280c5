#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/core/system/simd.h"

namespace paceline {
namespace {

// Every position within a cache line, and lengths around whole lines; the bytes on both sides must
// not change.
TEST(Copy, past_the_caches_copies_exactly_what_it_is_told) {
  constexpr std::size_t kRoom = 512;
  constexpr auto kBeside = std::byte{0xEE};
  std::vector<std::byte> from(kRoom), to(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i % 199);
  for (std::size_t offset = 0; offset < 65; ++offset) {
    for (const std::size_t bytes : {0, 1, 63, 64, 65, 127, 128, 129, 200, 256, 300}) {
      for (const std::size_t source : {0, 1, 8, 64}) {
        to.assign(kRoom, kBeside);
        copy_past_caches(to.data() + offset, from.data() + source, bytes);
        for (std::size_t i = 0; i < kRoom; ++i) {
          const bool inside = i >= offset && i < offset + bytes;
          ASSERT_EQ(to[i], inside ? from[source + i - offset] : kBeside)
              << i << " of " << bytes << " bytes at " << offset << " from " << source;
        }
      }
    }
  }
}

// Rows with gaps on one side or on both, of any length; the bytes in the gaps must not change.
TEST(Copy, rows_past_the_caches_are_where_they_are_told) {
  constexpr std::size_t kRows = 9, kRoom = 8192;
  constexpr auto kBetween = std::byte{0xEE};
  std::vector<std::byte> from(kRoom), to(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i % 199);
  for (const std::size_t bytes : {1, 64, 100, 256, 700}) {
    for (const std::size_t gap : {0, 1, 64, 150}) {
      const auto dense = static_cast<std::ptrdiff_t>(bytes);
      const auto apart = static_cast<std::ptrdiff_t>(bytes + gap);
      for (const RowDistance distance :
           {RowDistance{dense, apart}, RowDistance{apart, dense}, RowDistance{apart, apart}}) {
        to.assign(kRoom, kBetween);
        copy_rows_past_caches(to.data(), from.data(), bytes, kRows, distance);
        const auto stride = static_cast<std::size_t>(distance.to);
        for (std::size_t i = 0; i < kRoom; ++i) {
          const std::size_t row = i / stride, column = i % stride;
          const bool inside = row < kRows && column < bytes;
          ASSERT_EQ(to[i], inside ? from[row * static_cast<std::size_t>(distance.from) + column]
                                  : kBetween)
              << i << " of rows of " << bytes << " bytes";
        }
      }
    }
  }
}

TEST(Copy, knows_a_cache_of_a_plausible_size) {
  EXPECT_GE(last_level_cache_bytes(), 128u << 10);
  EXPECT_LE(last_level_cache_bytes(), 4ull << 30);
}

}  // namespace
}  // namespace paceline
