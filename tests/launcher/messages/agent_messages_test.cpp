#include "paceline/launcher/messages/agent_messages.h"

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

const Offer kOffer{{"fe80::1", 4000}, {"10.0.0.1", 4001}};

Joining some_joining() {
  Joining joining;
  joining.terms = {.version = "0.1", .run_id = "job", .num_nodes = 3};
  joining.host = "host \"\n";
  joining.num_ranks = 4;
  joining.stand_in = Endpoint{"h", 7};
  joining.offer = kOffer;
  joining.next_generation = 2;
  return joining;
}

TEST(AgentMessages, reports_arrive_as_they_were_sent) {
  std::vector<Report> reports = {
      some_joining(),
      RankFailure{1, {.cause = "cause", .end = "end", .signal = 11, .at = 5s}},
      RankFailure{1, {.cause = "cause", .exit_code = 3, .reason = "out of memory"}},
      RankFailure{1, {.cause = "cause", .signal = 9, .on_purpose = true}},
      Finished{4},
      Finished{4, true},
      Stopped{5, 1234ms, {}, kOffer},
      Stopped{5, 1234ms, 7, kOffer},
      Leaving{15},
      GivingUp{3000ms},
      Whereabouts{3, 7, 1.5, "[\"digest\"]"},
      Whereabouts{3, 0, 1.5, "[]", {2.5, 40, true, {0, 1}, {1}, {2}, {3, 4}}},
      Shares{2, {{0, 0.5, 30}, {7, 0.25, 4}}},
      Alive{{"h", 7}},
      WorkDone{3},
      Looking{"0.1", "job", 2, {"a", 1}, {"b", 2}}};
  Joining with_rank = some_joining();
  with_rank.node_rank = 0;
  with_rank.terms.roles = {{"trainer", 2}, {"observer", 4, true}};
  with_rank.role = "x";
  with_rank.role_serves = true;
  reports.emplace_back(with_rank);
  for (const Report& report : reports) EXPECT_EQ(decode_report(encode(report)), report);
}

TEST(AgentMessages, text_that_is_not_utf8_is_repaired) {
  const Report report = RankFailure{1, {.cause = "a\xff", .signal = 11}};
  const auto arrived = std::get<RankFailure>(decode_report(encode(report)));
  EXPECT_EQ(arrived.failure.cause, "a\xef\xbf\xbd");
  EXPECT_EQ(arrived.failure.signal, 11);
}

TEST(AgentMessages, orders_arrive_as_they_were_sent) {
  const RestartBudget restarts{.max_restarts = 5,
                               .window = 30s,
                               .after_damage = false,
                               .num_restarts = 3,
                               .ages = {20s, 1ns},
                               .last_end = "exit code 1",
                               .num_alike = 2,
                               .num_young = 1};
  const StartOrder start{
      {3, 1, 2, 4, 8, {{"trainer", 8}}, restarts}, {"a", 1}, {"b", 2}, "why", {{"c", 3}, {"d", 4}}};
  for (const Order& order : std::vector<Order>{
           start, StopOrder{"reason", Failure::Kind::kHost},
           StopOrder{"reason", Failure::Kind::kRank}, StopOrder{"reason", {}}, FirstFailureOrder{2},
           WaitOrder{"why"}, EndOrder{3, "cause", "reason"}, EndOrder{2, "", "", true},
           LookOrder{7}, HangOrder{2, 30.5, "who", {1, 3}, 0}, StragglerOrder{1, 3, 0.25, 0.5},
           HeardOrder{{"h", 7}}, FollowOrder{{"a", 1}}, WindUpOrder{2}}) {
    EXPECT_EQ(decode_order(encode(order)), order);
  }
}

TEST(AgentMessages, what_makes_no_sense_is_an_error) {
  for (const std::string text :
       {"", "{", "[]", "{}", "7", "null", R"({"type":"start"})", R"({"type":"finished"})",
        R"({"type":"finished","generation":"x"})", R"({"type":"stop","reason":5})",
        R"({"type":"wait"})", R"({"type":"nothing"})"}) {
    EXPECT_THROW(decode_report(text), Error) << text;
    EXPECT_THROW(decode_order(text), Error) << text;
  }
}

}  // namespace
}  // namespace paceline::launcher
