#include "paceline/launcher/placement/placement_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::ElementsAre;
using testing::IsEmpty;

struct Job {
  Topology topology = load_topology("core:4 pu:1");
  int num_ranks = 2;
  std::optional<int> threads_option;
  Binding binding;
  Environment inherited;
  std::vector<RunningJob> others;

  std::vector<std::string> warnings() const {
    PlacementRequest request{num_ranks, threads_option, binding};
    if (!request.threads_per_rank) request.threads_per_rank = inherited_threads(inherited);
    const Placement placement = plan_placement(topology, request);
    std::vector<std::string> texts;
    for (const Warning& warning : placement_warnings(
             {topology, request, placement, inherited, threads_option.has_value(), others})) {
      EXPECT_NE(warning.price, "");
      EXPECT_NE(warning.cure, "");
      texts.push_back(to_text(warning));
    }
    return texts;
  }
};

TEST(PlacementWarnings, the_default_is_silent) {
  EXPECT_THAT(Job{}.warnings(), IsEmpty());
  EXPECT_THAT((Job{.num_ranks = 4}).warnings(), IsEmpty());
  EXPECT_THAT((Job{.num_ranks = 1}).warnings(), IsEmpty());
}

TEST(PlacementWarnings, more_threads_than_cpus_are_reported_with_their_share_of_time) {
  EXPECT_THAT((Job{.threads_option = 4}).warnings(),
              ElementsAre(Says("placement.threads_above_cpus", "2 ranks", "4 threads", 4, "", "50%",
                               "--threads-per-rank 2")));
  EXPECT_THAT((Job{.num_ranks = 8}).warnings(),
              ElementsAre(Says("placement.threads_above_cpus", "8 ranks", "1 thread", 4, "", "50%",
                               "start fewer ranks")));
}

TEST(PlacementWarnings, one_rank_is_written_in_the_singular) {
  EXPECT_THAT((Job{.num_ranks = 1, .threads_option = 5}).warnings(),
              ElementsAre(Says("placement.threads_above_cpus", "1 rank", "5 threads", 4)));
}

TEST(PlacementWarnings, a_quota_below_the_threads_is_reported_with_its_source) {
  Job job{.num_ranks = 2};
  job.topology.quota = CpuQuota{1.5, "the cgroup"};
  EXPECT_THAT(job.warnings(),
              ElementsAre(Says("placement.threads_above_quota", "2 ranks", "1 thread", 1.5,
                               "the cgroup", "", "75%", "start fewer ranks")));
  job.num_ranks = 1;
  EXPECT_THAT(job.warnings(), IsEmpty());
}

TEST(PlacementWarnings, inherited_threads_that_leave_cores_idle_are_named) {
  EXPECT_THAT((Job{.inherited = {{"OMP_NUM_THREADS", "1"}}}).warnings(),
              ElementsAre(Says("placement.cores_idle", 1, 1, 2, 1)));
  EXPECT_THAT((Job{.inherited = {{"OMP_NUM_THREADS", "2"}}}).warnings(), IsEmpty());
  EXPECT_THAT((Job{.inherited = {{"OMP_NUM_THREADS", ""}}}).warnings(), IsEmpty());
  EXPECT_THAT((Job{.inherited = {{"OMP_NUM_THREADS", "x"}}}).warnings(),
              ElementsAre(Says("placement.threads_unreadable", "x", "2 threads")));
}

TEST(PlacementWarnings, inherited_threads_that_crowd_the_cores_are_named) {
  EXPECT_THAT(
      (Job{.inherited = {{"OMP_NUM_THREADS", "8,2"}}}).warnings(),
      ElementsAre(Says("placement.threads_above_cpus", "2 ranks", "8 threads", 4,
                       " (OMP_NUM_THREADS=8 is inherited)", "25%", "unset OMP_NUM_THREADS")));
  // There are enough hardware threads, but too few cores.
  Job siblings{.inherited = {{"OMP_NUM_THREADS", "4"}}};
  siblings.topology = load_topology("core:4 pu:2");
  EXPECT_THAT(siblings.warnings(), ElementsAre(Says("placement.threads_share_cores", 4, 2)));
}

TEST(PlacementWarnings, the_option_silences_what_it_overrides) {
  EXPECT_THAT(
      (Job{.threads_option = 2, .inherited = {{"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "7"}}})
          .warnings(),
      IsEmpty());
}

TEST(PlacementWarnings, a_blas_with_threads_of_its_own_is_named) {
  EXPECT_THAT((Job{.inherited = {{"OPENBLAS_NUM_THREADS", "16"}}}).warnings(),
              ElementsAre(Says("placement.blas_threads_inherited", "OPENBLAS_NUM_THREADS", 16,
                               "16 threads", "2 threads")));
}

TEST(PlacementWarnings, pinning_variables_are_named_once) {
  EXPECT_THAT((Job{.inherited = {{"OMP_PROC_BIND", "close"}, {"OMP_PLACES", "cores"}}}).warnings(),
              ElementsAre(Says("placement.pinning_inherited", "OMP_PROC_BIND", "close")));
  EXPECT_THAT((Job{.inherited = {{"OMP_PROC_BIND", "false"}, {"KMP_AFFINITY", "none"}}}).warnings(),
              IsEmpty());
}

TEST(PlacementWarnings, a_mask_of_an_outer_launcher_is_named_with_its_cure) {
  Job job{.inherited = {{"OMPI_COMM_WORLD_RANK", "0"}}};
  job.topology = restrict_topology(job.topology, {3});
  const auto warnings = job.warnings();
  ASSERT_EQ(warnings.size(), 2U);  // the other one is about more threads than cpus
  EXPECT_THAT(warnings[1],
              Says("placement.narrow_mask", "1 core", "cpus 3", 2, "mpirun --bind-to none"));
}

TEST(PlacementWarnings, a_map_that_gives_a_cpu_twice_is_named) {
  Job job{.binding = {.to = BindTo::kMap, .map = {{0, 1, 2}, {2}}}};
  EXPECT_THAT(job.warnings(), ElementsAre(Says("placement.cpu_shared", 0, 1, 2)));
}

TEST(PlacementWarnings, another_job_counts_when_there_are_too_few_cores_for_both) {
  Job job;
  job.others = {{.launcher = 77, .num_ranks = 2, .num_threads = 4, .cpus = {0, 1, 2, 3}}};
  EXPECT_THAT(job.warnings(), ElementsAre(Says("placement.another_job", 77, "0-3", 8, 4, "50%")));
  job.others.push_back({.launcher = 78, .num_ranks = 1, .num_threads = 8, .cpus = {3}});
  EXPECT_THAT(job.warnings(), ElementsAre(Says("placement.other_jobs", 2, "77, 78", "0-3", 16, 4)));
  job.others.pop_back();
  job.others[0].num_threads = 1;
  job.threads_option = 1;
  EXPECT_THAT(job.warnings(), IsEmpty());  // 3 threads on 4 cores
}

TEST(PlacementWarnings, another_job_on_other_cores_does_not_count) {
  Job job{.binding = {.to = BindTo::kMap, .map = {{0}, {1}}}};
  job.others = {{.launcher = 77, .num_ranks = 2, .num_threads = 2, .cpus = {2, 3}}};
  EXPECT_THAT(job.warnings(), IsEmpty());
  job.others[0].cpus = {1, 2};
  EXPECT_THAT(job.warnings(), ElementsAre(Says("placement.another_job", 77, 1, 4, 3)));
}

}  // namespace
}  // namespace paceline::launcher
