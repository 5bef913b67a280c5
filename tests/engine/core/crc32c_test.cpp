#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/core/bytes.h"

namespace paceline {
namespace {

// The vectors of RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, has_the_values_of_the_standard) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(as_bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
  std::vector<std::uint8_t> counting(32);
  std::iota(counting.begin(), counting.end(), std::uint8_t{0});
  EXPECT_EQ(crc32c(std::as_bytes(std::span(counting))), 0x46dd794eu);
}

// Three chunks are computed at once; of 8 chunks, two remain.
TEST(Crc32c, of_chunks_and_of_bytes_that_come_in_pieces_is_that_of_each) {
  std::vector<std::byte> bytes(8 * 4096);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 131 + i / 251);
  for (const std::size_t chunk : {8, 4096, 12}) {
    std::vector<std::uint32_t> sums(8);
    crc32c_of_chunks(std::span(bytes).first(8 * chunk), chunk, sums);
    for (std::size_t i = 0; i < sums.size(); ++i)
      EXPECT_EQ(sums[i], crc32c(std::span(bytes).subspan(i * chunk, chunk))) << i;
  }
  for (const std::size_t cut : {0, 1, 7, 4096, 8 * 4096}) {
    const std::uint32_t head = crc32c(std::span(bytes).first(cut));
    EXPECT_EQ(crc32c(std::span(bytes).subspan(cut), head), crc32c(bytes)) << cut;
  }
}

}  // namespace
}  // namespace paceline
