#include "paceline/core/crc32c.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/core/bytes.h"

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

}  // namespace
}  // namespace paceline
