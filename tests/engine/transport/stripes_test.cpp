#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/transport/exchange.h"

namespace paceline {
namespace {

constexpr std::size_t kBlock = Stripes::kBlockBytes;

TEST(Stripes, carry_every_byte_once) {
  for (const std::size_t streams : {1, 2, 3, 7, 16}) {
    for (const std::size_t bytes :
         {std::size_t(0), std::size_t(1), 2 * kBlock - 1, 2 * kBlock, 2 * kBlock + 1, 3 * kBlock,
          7 * kBlock - 5, 16 * kBlock, 40 * kBlock + 77}) {
      const Stripes stripes(bytes, streams);
      std::vector<int> carried(bytes, 0);
      std::size_t sum = 0;
      for (std::size_t stream = 0; stream < streams; ++stream) {
        std::size_t done = 0;
        for (auto run = stripes.next(stream, 0); run.count > 0; run = stripes.next(stream, done)) {
          ASSERT_LE(run.offset + run.count, bytes);
          for (std::size_t i = 0; i < run.count; ++i) ++carried[run.offset + i];
          done += run.count;
        }
        EXPECT_EQ(done, stripes.share(stream)) << bytes << " over " << streams;
        EXPECT_EQ(stripes.next(stream, done).offset, bytes);
        sum += done;
      }
      EXPECT_EQ(sum, bytes);
      EXPECT_EQ(carried, std::vector<int>(bytes, 1)) << bytes << " over " << streams;
    }
  }
}

TEST(Stripes, go_on_within_a_block) {
  const Stripes stripes(5 * kBlock + 10, 2);  // blocks 0, 2 and 4; blocks 1 and 3 and ten bytes
  EXPECT_EQ(stripes.share(0), 3 * kBlock);
  EXPECT_EQ(stripes.share(1), 2 * kBlock + 10);
  EXPECT_EQ(stripes.next(0, kBlock + 1).offset, 2 * kBlock + 1);
  EXPECT_EQ(stripes.next(0, kBlock + 1).count, kBlock - 1);
  EXPECT_EQ(stripes.next(1, 2 * kBlock).offset, 5 * kBlock);
  EXPECT_EQ(stripes.next(1, 2 * kBlock).count, 10u);
}

TEST(Stripes, leave_short_payloads_to_the_first_stream) {
  const Stripes stripes(Stripes::kMinBytes - 1, 4);
  EXPECT_EQ(stripes.share(0), Stripes::kMinBytes - 1);
  EXPECT_EQ(stripes.next(0, 10).count, Stripes::kMinBytes - 11);  // all in one piece
  for (const std::size_t stream : {1, 2, 3}) EXPECT_EQ(stripes.share(stream), 0u);
}

}  // namespace
}  // namespace paceline
