// The decisions of parameters on devices, without a device: the places in the pool, and the units
// that will probably be read next.

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/training/optim/parameters/device_parameters.h"

namespace paceline::optim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Units = std::vector<std::size_t>;

TEST(RangePool, gives_large_ranges_from_the_beginning_and_small_ones_from_the_end) {
  RangePool pool(16 * 512);
  EXPECT_EQ(pool.take(5 * 512), 0U);
  EXPECT_EQ(pool.take(1), 15 * 512U);
  EXPECT_EQ(pool.take(6 * 512 - 100), 5 * 512U);
  EXPECT_EQ(pool.take(513), 13 * 512U);
  EXPECT_EQ(pool.take(3 * 512), std::nullopt);
  EXPECT_EQ(pool.take(2 * 512), 11 * 512U);
  EXPECT_EQ(pool.take(1), std::nullopt);
}

TEST(RangePool, merges_neighbouring_ranges_that_were_given_back) {
  RangePool pool(4 * 2048);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(pool.take(2048));
  pool.give_back(0);
  pool.give_back(2 * 2048);
  EXPECT_EQ(pool.take(2 * 2048), std::nullopt);
  pool.give_back(2048);
  EXPECT_EQ(pool.take(3 * 2048), 0U);
  pool.give_back(0);
  pool.give_back(3 * 2048);
  EXPECT_EQ(pool.take(4 * 2048), 0U);
}

TEST(ReadOrder, expects_the_order_of_the_previous_step) {
  ReadOrder order;
  const auto read = [&](const Units& units) { return order.note(units); };
  for (const std::size_t unit : {0, 1, 2, 1, 0}) {
    EXPECT_TRUE(read({unit}));
    EXPECT_FALSE(read({unit})) << "the same unit again";
    EXPECT_THAT(order.next(), IsEmpty());
  }
  order.begin_step();
  EXPECT_THAT(order.next(), ElementsAre(0, 1, 2, 1, 0));
  read({0});
  EXPECT_THAT(order.next(), ElementsAre(1, 2, 1, 0));
  read({2});  // an operation is missing
  EXPECT_THAT(order.next(), ElementsAre(1, 0));
  read({1, 2});
  EXPECT_THAT(order.next(), ElementsAre(1, 0)) << "2 was read at the beginning of the order";
}

TEST(ReadOrder, goes_on_when_an_order_repeats) {
  ReadOrder order;
  for (const std::size_t unit : {3, 4, 5}) order.note(Units{unit});
  order.begin_step();
  for (int pass = 0; pass < 2; ++pass) {
    order.note(Units{3});
    EXPECT_THAT(order.next(), ElementsAre(4, 5));
    order.note(Units{4});
    order.note(Units{5});
    EXPECT_THAT(order.next(), IsEmpty());
  }
  order.note(Units{9});  // a unit that the step did not read
  EXPECT_THAT(order.next(), IsEmpty());
}

}  // namespace
}  // namespace paceline::optim
