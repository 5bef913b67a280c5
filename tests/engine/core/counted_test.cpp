#include <gtest/gtest.h>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

TEST(Counted, one_is_singular) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(std::size_t{0}, "host"), "0 hosts");
  EXPECT_EQ(counted(2L, "core"), "2 cores");
}

TEST(Counted, sizes_are_short) {
  EXPECT_EQ(size_text(8), "8 B");
  EXPECT_EQ(size_text(1000), "1000 B");
  EXPECT_EQ(size_text(64 << 10), "64 KiB");
  EXPECT_EQ(size_text(3 << 19), "1.5 MiB");
  EXPECT_EQ(size_text(std::size_t(1) << 30), "1 GiB");
}

}  // namespace
}  // namespace paceline
