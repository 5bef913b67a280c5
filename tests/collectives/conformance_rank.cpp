// conformance_rank BACKEND WORLD_SIZE: one rank of the conformance suite. Start it with a launcher,
// as often as WORLD_SIZE says, with PACELINE_BACKEND set; the arguments are what is expected.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "paceline/collectives/init.h"

#include "tests/collectives/conformance.h"

namespace paceline {
namespace {

class RankTest : public testing::Test {
 public:
  RankTest(ProcessGroup& group, const conformance::Check& check) : group_(group), check_(check) {}
  void TestBody() override { check_.run(group_); }

 private:
  ProcessGroup& group_;
  const conformance::Check check_;
};

int run(const std::string& backend, int world_size) {
  const auto group = init_process_group({.group = {.timeout = std::chrono::seconds(60)}});
  // A launcher that does not fit would make WORLD_SIZE worlds of one, where everything passes.
  if (group->world_size() != world_size || group->backend() != backend) {
    std::fprintf(stderr, "this is a group of %d with backend %s, not of %d with %s\n",
                 group->world_size(), group->backend().c_str(), world_size, backend.c_str());
    return 1;
  }
  for (const auto& check : conformance::checks()) {
    testing::RegisterTest("Conformance", check.name, nullptr, nullptr, __FILE__, __LINE__,
                          [&group, &check] { return new RankTest(*group, check); });
  }
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: conformance_rank BACKEND WORLD_SIZE\n");
    return 2;
  }
  try {
    return paceline::run(argv[1], std::atoi(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "conformance_rank: %s\n", error.what());
    return 1;
  }
}
