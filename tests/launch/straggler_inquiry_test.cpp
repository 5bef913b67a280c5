// Who keeps the others waiting in a job on several hosts.

#include "paceline/launch/straggler_inquiry.h"

#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launch/job_nodes.h"

namespace paceline::launch {
namespace {

using testing::HasSubstr;
using testing::Not;

// Two hosts, 4 and 9, of a rank each.
class StragglerInquiries : public testing::Test {
 protected:
  StragglerInquiries() { inquiry_.begin(2, {4, 9}); }

  // What is ordered once both have reported these shares `times` times.
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

TEST_F(StragglerInquiries, name_the_rank_that_waits_for_nobody_once) {
  EXPECT_FALSE(after(3, 0.6, 0.05));
  const auto order = after(1, 0.6, 0.05);
  ASSERT_TRUE(order);
  EXPECT_EQ(*order, (StragglerOrder{2, 1, 0.05, 0.6}));
  EXPECT_FALSE(after(20, 0.6, 0.05));
  EXPECT_FALSE(after(3, 0.05, 0.6));  // another one, for a while
  ASSERT_TRUE(after(1, 0.05, 0.6));
}

TEST_F(StragglerInquiries, name_nobody_when_all_wait_alike_or_hardly) {
  EXPECT_FALSE(after(10, 0.6, 0.5));
  EXPECT_FALSE(after(10, 0.09, 0.0));
  EXPECT_FALSE(after(10, 0.6, 0.05, 19));  // too few operations to judge by
}

TEST_F(StragglerInquiries, judge_only_with_the_reports_of_all_hosts) {
  for (int i = 0; i < 10; ++i) inquiry_.take(4, {2, {{0, 0.6, 100}, {2, 0.01, 100}}});
  EXPECT_TRUE(inquiry_.take_mail().empty());
  inquiry_.take(4, {1, {{0, 0.6, 100}}});  // of an older generation
  inquiry_.lose(9);
  for (int i = 0; i < 4; ++i) inquiry_.take(4, {2, {{0, 0.6, 100}, {2, 0.01, 100}}});
  EXPECT_EQ(inquiry_.take_mail().size(), 1u);
}

TEST(RunHostsStraggler, is_named_where_each_host_has_one_rank) {
  PacelineProcess paceline({"run", "--hosts", "localhost:1,127.0.0.1:1", "--straggler-after", "1.5",
                            RECORDED_PROGRAM, "sleeps"});
  std::this_thread::sleep_for(std::chrono::seconds(8));
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_THAT(outcome.err, HasSubstr("[127.0.0.1] paceline: rank 1 keeps the others waiting: it "
                                     "spends "));
  EXPECT_THAT(outcome.err, HasSubstr("  probable cause: "));
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 0 keeps")));
}

class RunNodesStraggler : public JobNodes {};

TEST_F(RunNodesStraggler, is_named_where_each_host_has_one_rank) {
  const std::string program = std::string("exec ") + RECORDED_PROGRAM + " sleeps";
  const auto first = start_first("2", program, {"--node-rank", "0", "--straggler-after", "1.5"});
  const auto second = start("2", program, {"--node-rank", "1", "--straggler-after", "1.5"});
  std::this_thread::sleep_for(std::chrono::seconds(8));
  first->send(SIGTERM);
  const Outcome a = first->wait(), b = second->wait();
  EXPECT_THAT(b.err, HasSubstr("rank 1 keeps the others waiting: it spends "));
  EXPECT_THAT(a.err, Not(HasSubstr("rank 0 keeps")));
}

}  // namespace
}  // namespace paceline::launch
