#include "tests/engine/collectives/conformance_run.h"

#include <cstdio>
#include <exception>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"

#include "tests/engine/collectives/conformance.h"

namespace paceline::conformance {
namespace {

class RankTest : public testing::Test {
 public:
  RankTest(ProcessGroup& group, const Check& check) : group_(group), check_(check) {}
  void TestBody() override { check_.run(group_); }

 private:
  ProcessGroup& group_;
  const Check check_;
};

int run_checks(const std::string& backend, int world_size) {
  const auto group = init_process_group({.group = {.timeout = std::chrono::seconds(60)}});
  // The wrong launcher would start WORLD_SIZE groups of one rank each, in which every check passes.
  if (group->world_size() != world_size || group->backend() != backend) {
    std::fprintf(stderr, "this is a group of %d with backend %s, not of %d with %s\n",
                 group->world_size(), group->backend().c_str(), world_size, backend.c_str());
    return 1;
  }
  for (const auto& check : checks()) {
    testing::RegisterTest("Conformance", check.name, nullptr, nullptr, __FILE__, __LINE__,
                          [&group, &check] { return new RankTest(*group, check); });
  }
  return RUN_ALL_TESTS();
}

}  // namespace

int run_rank(const std::string& backend, int world_size) {
  try {
    return run_checks(backend, world_size);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "conformance of %s: %s\n", backend.c_str(), error.what());
    return 1;
  }
}

}  // namespace paceline::conformance
