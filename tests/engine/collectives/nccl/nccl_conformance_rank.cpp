// The conformance suite over NCCL, with one GPU per rank:
//
//   nccl_conformance_rank gpus RANKS   prints why it cannot run here, and then exits with 77
//   nccl_conformance_rank run RANKS    runs one rank, started by `paceline run`

#include <cstdio>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

#include "tests/engine/collectives/conformance_run.h"
#include "tests/engine/collectives/nccl/device_buffers.h"
#include "tests/engine/collectives/nccl/staged_nccl.h"

namespace {

constexpr int kSkipped = 77;

int look_for_gpus(int ranks) {
  const std::string reason = paceline::why_no_gpus(ranks);
  if (reason.empty()) return 0;
  std::printf("skipped: no GPU for each of %d ranks: %s\n", ranks, reason.c_str());
  return kSkipped;
}

int run(int ranks) {
  paceline::register_staged_nccl();
  setenv("PACELINE_BACKEND", paceline::kStagedNccl, 1);
  return paceline::conformance::run_rank(paceline::kStagedNccl, ranks);
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string what = argc == 3 ? argv[1] : "";
  if (what == "gpus") return look_for_gpus(std::atoi(argv[2]));
  if (what == "run") return run(std::atoi(argv[2]));
  std::fprintf(stderr, "usage: nccl_conformance_rank gpus|run RANKS\n");
  return 2;
}
