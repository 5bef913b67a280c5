// Finding the rank that keeps the others waiting, in a job on several hosts.

#include <optional>

#include <gtest/gtest.h>

#include "paceline/launcher/diagnosis/straggler_watch.h"

namespace paceline::launcher {
namespace {

// Two hosts, 4 and 9, with one rank each.
class StragglerInquiries : public testing::Test {
 protected:
  StragglerInquiries() { inquiry_.begin(2, {4, 9}); }

  // The order that follows after both hosts have reported these shares `times` times.
  std::optional<StragglerOrder> after(int times, double a, double b, int num_operations = 100) {
    std::optional<StragglerOrder> order;
    for (int i = 0; i < times; ++i) {
      inquiry_.take(4, {2, {{0, a, num_operations}}});
      inquiry_.take(9, {2, {{1, b, num_operations}}});
      for (const auto& mail : inquiry_.take_mail()) {
        EXPECT_FALSE(order);
        order = std::get<StragglerOrder>(mail.order);
        EXPECT_EQ(mail.to, order->rank == 0 ? 4 : 9);
      }
    }
    return order;
  }

  StragglerInquiry inquiry_;
};

TEST_F(StragglerInquiries, name_the_rank_that_waits_for_no_other_once) {
  EXPECT_FALSE(after(3, 0.6, 0.05));
  const auto order = after(1, 0.6, 0.05);
  ASSERT_TRUE(order);
  EXPECT_EQ(*order, (StragglerOrder{2, 1, 0.05, 0.6}));
  EXPECT_FALSE(after(20, 0.6, 0.05));
  EXPECT_FALSE(after(3, 0.05, 0.6));  // another rank, but not for long enough
  ASSERT_TRUE(after(1, 0.05, 0.6));
}

TEST_F(StragglerInquiries, name_no_rank_when_all_wait_alike_or_hardly) {
  EXPECT_FALSE(after(10, 0.6, 0.5));
  EXPECT_FALSE(after(10, 0.09, 0.0));
  EXPECT_FALSE(after(10, 0.6, 0.05, 19));  // too few operations for a verdict
}

TEST_F(StragglerInquiries, judge_only_with_the_reports_of_all_hosts) {
  for (int i = 0; i < 10; ++i) inquiry_.take(4, {2, {{0, 0.6, 100}, {2, 0.01, 100}}});
  EXPECT_TRUE(inquiry_.take_mail().empty());
  inquiry_.take(4, {1, {{0, 0.6, 100}}});  // reports an older generation
  inquiry_.lose(9);
  for (int i = 0; i < 4; ++i) inquiry_.take(4, {2, {{0, 0.6, 100}, {2, 0.01, 100}}});
  EXPECT_EQ(inquiry_.take_mail().size(), 1u);
}

}  // namespace
}  // namespace paceline::launcher
