// init_process_group() where it cannot succeed: what it says, and what it leaves in the records.

#include "paceline/collectives/init.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/collectives/flight/explain.h"
#include "paceline/store/memory_store.h"

#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

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

// What two ranks get that choose these backends.
std::array<std::string, 2> errors_of_two(const std::array<std::string, 2>& backends = {}) {
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
                            .group = {.timeout = 20s, .backend = backends[rank]}});
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  }
  ranks.clear();
  return errors;
}

TEST(Init, a_variable_that_cannot_be_names_the_rank_itself_and_what_there_is) {
  struct Case {
    const char *name, *value, *choices;
  };
  const FreshDirectory directory;
  const Variable records("PACELINE_FLIGHT_DIR", directory.path());
  for (const Case& one : {Case{"PACELINE_TRANSPORT", "foo", "auto, shm, tcp, loopback or ucx"},
                          Case{"PACELINE_TCP_STREAMS", "99", "from 1 to 16"},
                          Case{"PACELINE_ENCRYPT", "yes", "0 or 1"},
                          Case{"PACELINE_BY_SOCKET", "maybe", "auto, never or always"}}) {
    const Variable wrong(one.name, one.value);
    const auto errors = errors_of_two();
    for (const int rank : {0, 1}) {
      const auto& error = errors[static_cast<std::size_t>(rank)];
      EXPECT_THAT(error, StartsWith("rank " + std::to_string(rank) + ": init_process_group: "));
      EXPECT_THAT(error, HasSubstr(one.name));
      EXPECT_THAT(error, HasSubstr(one.value));
      EXPECT_THAT(error, HasSubstr(one.choices));
    }
    // Nothing was begun that a launcher could say more about.
    EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << one.name;
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
  EXPECT_THAT(found.sentence, HasSubstr("failed outside of any operation: rank 0: forming group"));
}

}  // namespace
}  // namespace paceline
