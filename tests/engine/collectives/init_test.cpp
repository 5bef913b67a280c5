// Failures of init_process_group(): its error messages and the flight records that it leaves.

#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/store/memory_store.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* const name_;
};

// The errors of two ranks that call init_process_group() with these options.
std::array<std::string, 2> errors_of_two(const std::array<GroupOptions, 2>& options) {
  const auto store = std::make_shared<MemoryStore>();
  const auto secret = Secret::generate();
  std::array<std::string, 2> errors;
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        init_process_group({.rendezvous = {.rank = static_cast<int>(rank),
                                           .world_size = 2,
                                           .store = store,
                                           .secret = secret},
                            .group = options[rank]});
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  }
  ranks.clear();
  return errors;
}

std::array<std::string, 2> errors_of_two(const std::array<std::string, 2>& backends = {}) {
  return errors_of_two({GroupOptions{.timeout = 20s, .backend = backends[0]},
                        GroupOptions{.timeout = 20s, .backend = backends[1]}});
}

TEST(Init, a_variable_that_cannot_be_names_the_rank_itself_and_what_there_is) {
  struct Case {
    const char *name, *value, *choices;
  };
  const FreshDirectory directory;
  const Variable records("PACELINE_FLIGHT_DIR", directory.path());
  for (const Case& one : {Case{"PACELINE_TRANSPORT", "foo", "auto, shm, tcp, loopback or ucx"},
                          Case{"PACELINE_TCP_STREAMS", "99", "from 1 to 16"},
                          Case{"PACELINE_ENCRYPT", "yes", "0 or 1"}}) {
    const Variable wrong(one.name, one.value);
    const auto errors = errors_of_two();
    for (const int rank : {0, 1}) {
      const auto& error = errors[static_cast<std::size_t>(rank)];
      EXPECT_THAT(error, StartsWith("rank " + std::to_string(rank) + ": init_process_group: "));
      EXPECT_THAT(error, HasSubstr(one.name));
      EXPECT_THAT(error, HasSubstr(one.value));
      EXPECT_THAT(error, HasSubstr(one.choices));
    }
    // The failed call left no flight records.
    EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << one.name;
  }
}

// This stands for a wrong environment variable of one rank, which a thread cannot have for itself.
TEST(Init, a_resource_that_one_rank_lacks_is_reported_to_the_others_before_they_meet) {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::size_t odd : {0u, 1u}) {
    std::array<GroupOptions, 2> options;
    options[odd].timeout = -1s;
    for (const auto& error : errors_of_two(options)) {
      EXPECT_THAT(error, StartsWith("rank " + std::to_string(odd) +
                                    ": init_process_group: "
                                    "GroupOptions::timeout is -1000 ms"));
    }
    options[odd] = {.link = {.host = std::string(5000, 'x')}};
    for (const auto& error : errors_of_two(options)) {
      EXPECT_THAT(error, StartsWith("rank " + std::to_string(odd) +
                                    ": init_process_group: "
                                    "LinkOptions::host has 5000 bytes, more than 255"));
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST(Init, an_error_found_while_forming_is_reported_to_the_others) {
  for (const std::size_t odd : {0u, 1u}) {
    std::array<GroupOptions, 2> options = {GroupOptions{.timeout = 20s},
                                           GroupOptions{.timeout = 20s}};
    options[odd].link.tcp_streams = 99;
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& error : errors_of_two(options)) {
      EXPECT_THAT(error, Says("forming.tcp_streams", fmt::format("rank {}", odd), "world", 99));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  }
}

// A store has room for a limited number of keys.
TEST(Init, groups_leave_no_addresses_in_the_store) {
  const auto store = std::make_shared<MemoryStore>();
  const auto secret = Secret::generate();
  std::vector<std::jthread> ranks;
  for (const int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      const auto world = init_process_group(
          {.rendezvous = {.rank = rank, .world_size = 2, .store = store, .secret = secret}});
      world->barrier();
      const auto before = store->num_keys();
      world->barrier();
      for (int i = 0; i < 3; ++i) {
        world->new_group({0, 1})->barrier();
        world->split(rank, 0)->barrier();
      }
      world->barrier();
      EXPECT_EQ(store->num_keys(), before);
      world->barrier();
    });
  }
}

TEST(Init, an_empty_variable_is_none) {
  for (const char* name : {"PACELINE_TRANSPORT", "PACELINE_TCP_STREAMS", "PACELINE_ENCRYPT",
                           "PACELINE_TIMEOUT", "PACELINE_BACKEND"}) {
    const Variable empty(name, "");
    for (const auto& error : errors_of_two()) EXPECT_EQ(error, "") << name;
  }
}

TEST(Init, ranks_that_differ_in_what_chooses_algorithms_are_shown_both) {
  for (const auto& error :
       errors_of_two({GroupOptions{.timeout = 20s, .planning = {.algorithm = Algorithm::kDirect}},
                      GroupOptions{.timeout = 20s,
                      .planning = {.algorithm = Algorithm::kTree, .allows_any_order = true}}})) {
    EXPECT_THAT(error,
                Says("forming.options_differ", "world", "algorithm tree, allows_any_order true",
                     "algorithm direct, allows_any_order false"));
  }
}

// Threads of one process are different ranks of a job, and each may have its own group.
TEST(Init, a_second_group_of_a_rank_that_lives_is_refused_at_once) {
  const auto store = std::make_shared<MemoryStore>();
  const auto secret = Secret::generate();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const InitOptions options{
          .rendezvous = {.rank = rank, .world_size = 2, .store = store, .secret = secret},
          .group = {.timeout = 20s}};
      const auto refused = [&] {
        try {
          init_process_group(options);
          return std::string("it was not");
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kInvalid);
          return std::string(error.what());
        }
      };
      const auto text =
          "rank " + std::to_string(rank) +
          ": this process already belongs to group \"world\" or a subgroup; destroy every group";
      auto world = init_process_group(options);
      EXPECT_THAT(refused(), StartsWith(text));
      auto child = world->split(0, rank);
      world.reset();
      EXPECT_THAT(refused(), StartsWith(text));
      EXPECT_EQ(all_reduce_value(*child, 1), 2);
      child.reset();
      EXPECT_EQ(all_reduce_value(*init_process_group(options), 1), 2);
    });
  }
}

TEST(Init, a_group_that_does_not_form_says_where_and_leaves_the_reason_in_the_records) {
  const FreshDirectory directory;
  const Variable records("PACELINE_FLIGHT_DIR", directory.path());
  const auto errors = errors_of_two({"", "glo"});
  EXPECT_THAT(errors[0], StartsWith("rank 0: forming group world failed on rank 1: backend 'glo'"));
  EXPECT_THAT(errors[1], StartsWith("rank 1: forming group world failed: backend 'glo'"));
  const auto found = explain(read_flights(directory.path()).flights);
  EXPECT_EQ(found.verdict, Verdict::kFailed);
  EXPECT_THAT(found.sentence, Says("explain.failed_outside", 0, "rank 0: forming group"));
}

}  // namespace
}  // namespace paceline
