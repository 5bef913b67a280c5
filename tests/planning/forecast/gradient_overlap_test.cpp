#include <gtest/gtest.h>

#include "paceline/planning/forecast/step_parts.h"

namespace paceline::planning {
namespace {

double a_second_for_each_byte(double bytes) { return bytes; }

TEST(GradientOverlap, the_last_bucket_cannot_be_hidden) {
  // Layers of 10 s and 2 bytes: buckets are sent at 10, 20 and 30 s, each before the next is ready.
  const auto exposed = exposed_exchange({{10, 2}, {10, 2}, {10, 2}}, 2, a_second_for_each_byte);
  EXPECT_EQ(exposed.num_buckets, 3);
  EXPECT_DOUBLE_EQ(exposed.whole_s, 6);
  EXPECT_DOUBLE_EQ(exposed.seconds, 2);
}

TEST(GradientOverlap, a_slow_link_is_never_free) {
  // The first bucket is sent at 1 s; 60 s of sending end at 61 s, 58 s after the pass.
  const auto exposed = exposed_exchange({{1, 20}, {1, 20}, {1, 20}}, 20, a_second_for_each_byte);
  EXPECT_DOUBLE_EQ(exposed.seconds, 58);
}

TEST(GradientOverlap, gradients_of_several_layers_travel_together) {
  // The bucket is full after two layers, at 2 s, and takes 4 s. The rest is ready at 3 s and takes
  // 2 s after it: the end is at 8 s, 5 s after the pass.
  const auto exposed = exposed_exchange({{1, 2}, {1, 2}, {1, 2}}, 4, a_second_for_each_byte);
  EXPECT_EQ(exposed.num_buckets, 2);
  EXPECT_DOUBLE_EQ(exposed.seconds, 5);
}

TEST(GradientOverlap, without_parameters_there_is_nothing_to_send) {
  const auto exposed = exposed_exchange({{1, 0}}, 4, a_second_for_each_byte);
  EXPECT_EQ(exposed.num_buckets, 0);
  EXPECT_EQ(exposed.seconds, 0);
}

}  // namespace
}  // namespace paceline::planning
