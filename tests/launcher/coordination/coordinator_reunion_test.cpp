// Several coordinators of one job, each with some of the nodes, after the network was partitioned.

#include <gtest/gtest.h>

#include "tests/launcher/coordination/coordinated_job.h"

namespace paceline::launcher {
namespace {

constexpr int kCaller = 99;

Endpoint at(int agent) { return {fmt::format("10.0.0.{}", agent), 1}; }

// The agents on one side of a network partition. The first of `agents` leads. In generation 0 the
// agents of both sides together were one job of `world` nodes.
class Side {
 public:
  Side(const CoordinatorSettings& usual, const std::vector<int>& agents, int world)
      : leader_(agents.front()), job_(settings(usual, agents, world)) {
    for (const int agent : agents) {
      Joining joining = job_.joining(agent);
      joining.next_generation = 1;
      job_.join(agent, joining);
    }
  }

  CoordinatedJob& job() { return job_; }
  int leader() const { return leader_; }
  bool looks() const { return !job_.coordinator().others_to_ask().empty(); }
  // Asks the other side and follows its answer. Returns whether this side gave way.
  bool give_way_to(Side& other) {
    const Looking question = job_.coordinator().question_to(at(other.leader()));
    other.job().report(kCaller, question);
    const auto answer = other.job().take<FollowOrder>(kCaller);
    if (!answer) return false;
    EXPECT_EQ(answer->leader, at(other.leader()));
    job_.follow(answer->leader);
    return job_.over();
  }

 private:
  static CoordinatorSettings settings(CoordinatorSettings usual, const std::vector<int>& agents,
                                      int world) {
    usual.leader = at(agents.front());
    usual.first_generation = 1;
    usual.expected_nodes = static_cast<int>(agents.size());
    for (int agent = 0; agent < world; ++agent) {
      if (agent != agents.front()) usual.stand_ins.push_back(at(agent));
    }
    return usual;
  }

  const int leader_;
  CoordinatedJob job_;
};

struct Split {
  const char* what;
  CoordinatorSettings usual;
  std::vector<int> left, right;
  bool left_gives_way, right_gives_way;
};

std::vector<Split> splits() {
  return {
      {"the cut-off node, the others wait for it", nodes(3, 3, 9), {2}, {0, 1}, true, false},
      {"the cut-off leader, the others wait for it", nodes(3, 3, 9), {0}, {1, 2}, true, false},
      {"the cut-off node, the others go on", nodes(2, 3, 9), {2}, {0, 1}, true, false},
      {"the cut-off leader, the others go on without restarts",
       nodes(2, 3),
       {0},
       {1, 2},
       true,
       false},
      {"one against one: the first in the order of addresses",
       nodes(2, 2, 9),
       {1},
       {0},
       true,
       false},
      {"the same seen from the other side", nodes(2, 2, 9), {0}, {1}, false, true},
      {"two against two", nodes(4, 4, 9), {2, 3}, {0, 1}, true, false},
      {"more count for more than the order", nodes(5, 5, 9), {0, 1}, {2, 3, 4}, true, false},
      {"enough on both sides: neither", nodes(1, 2, 9), {0}, {1}, false, false},
  };
}

TEST(CoordinatorReunion, the_one_with_fewer_nodes_than_it_needs_gives_way_to_the_one_with_more) {
  for (const Split& split : splits()) {
    SCOPED_TRACE(split.what);
    const int world = static_cast<int>(split.left.size() + split.right.size());
    for (const bool left_asks_first : {true, false}) {
      Side left(split.usual, split.left, world), right(split.usual, split.right, world);
      const auto give_way = [](Side& one, Side& other) {
        return one.looks() && !other.job().over() && one.give_way_to(other);
      };
      bool left_gave = false, right_gave = false;
      for (int round = 0; round < 2; ++round) {
        if (left_asks_first) left_gave = left_gave || give_way(left, right);
        right_gave = right_gave || give_way(right, left);
        left_gave = left_gave || give_way(left, right);
      }
      EXPECT_EQ(left_gave, split.left_gives_way);
      EXPECT_EQ(right_gave, split.right_gives_way);
    }
  }
}

TEST(CoordinatorReunion, all_agents_are_sent_to_the_one_that_has_more) {
  Side left(nodes(4, 4, 9), {2, 3}, 4), right(nodes(4, 4, 9), {0, 1}, 4);
  ASSERT_TRUE(left.give_way_to(right));
  for (const int agent : {2, 3}) {
    const auto order = left.job().take<FollowOrder>(agent);
    ASSERT_TRUE(order) << agent;
    EXPECT_EQ(order->leader, at(0));
    Joining joining = right.job().joining(agent);
    joining.next_generation = 1;
    right.job().join(agent, joining);
  }
  const auto start = right.job().take<StartOrder>(0);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->place.num_nodes, 4);
  EXPECT_FALSE(right.looks());
}

// The left side has told the right one to come, so it must stay until the right one may have come.
TEST(CoordinatorReunion, one_that_called_another_does_not_leave_at_the_same_time) {
  Side left(nodes(3, 3, 9), {0}, 3), right(nodes(3, 3, 9), {2}, 3);
  right.job().report(kCaller, left.job().coordinator().question_to(at(2)));
  EXPECT_FALSE(right.job().take<FollowOrder>(kCaller));
  left.job().report(kCaller, right.job().coordinator().question_to(at(0)));
  ASSERT_TRUE(left.job().take<FollowOrder>(kCaller));
  Joining joining = right.job().joining(1);  // meanwhile the right side has another agent
  right.job().join(1, joining);
  EXPECT_FALSE(left.give_way_to(right));
  left.job().pass(6s);
  EXPECT_TRUE(left.give_way_to(right));
}

TEST(CoordinatorReunion, other_jobs_and_versions_get_no_answer) {
  Side left(nodes(3, 3, 9), {2}, 3), right(nodes(3, 3, 9), {0, 1}, 3);
  for (const bool other_job : {true, false}) {
    Looking question = left.job().coordinator().question_to(at(0));
    (other_job ? question.run_id : question.version) += "x";
    right.job().report(kCaller, question);
    EXPECT_FALSE(right.job().take<FollowOrder>(kCaller));
  }
}

TEST(CoordinatorReunion, one_that_never_had_a_generation_or_has_enough_looks_for_nobody) {
  CoordinatedJob first(nodes(3, 3, 9));
  first.join(0);
  EXPECT_TRUE(first.coordinator().others_to_ask().empty());
  first.join(1);
  first.join(2);
  ASSERT_TRUE(first.take<StartOrder>(0));
  EXPECT_TRUE(first.coordinator().others_to_ask().empty());
  first.lose(2);
  first.stopped(0, 0);
  EXPECT_TRUE(first.coordinator().others_to_ask().empty());  // agent 1 still runs
  first.stopped(1, 0);
  EXPECT_EQ(first.coordinator().others_to_ask(), std::vector{at(2)});
}

// A coordinator that other agents still follow must not end because a single node gives it up.
TEST(CoordinatorReunion, as_many_agents_must_give_it_up_as_make_a_job) {
  for (const auto& [min, wanted] : {std::pair(1, 1), std::pair(2, 2), std::pair(3, 3)}) {
    CoordinatedJob job(nodes(min, 4, 9));
    for (int agent = 0; agent < 4; ++agent) job.join(agent);
    ASSERT_TRUE(job.take<StartOrder>(0));
    int given_up = 1;
    while (!job.add_deserter(given_up)) ++given_up;
    EXPECT_EQ(given_up, wanted) << "MIN " << min;
  }
}

}  // namespace
}  // namespace paceline::launcher
