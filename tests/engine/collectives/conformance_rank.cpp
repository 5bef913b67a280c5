// conformance_rank BACKEND WORLD_SIZE: one rank of the conformance suite. A launcher must start
// WORLD_SIZE of them, with PACELINE_BACKEND set; the arguments are the expected values.

#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/engine/collectives/conformance_run.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: conformance_rank BACKEND WORLD_SIZE\n");
    return 2;
  }
  return paceline::conformance::run_rank(argv[1], std::atoi(argv[2]));
}
