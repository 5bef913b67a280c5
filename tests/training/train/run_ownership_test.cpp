#include <gmock/gmock.h>

#include "paceline/engine/core/error.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/checkpoints/checkpointer_core.h"

#include "tests/harness/says.h"

namespace paceline::train {
namespace {

using harness::Says;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const JobStart kFirst{.job = "j"};
const JobStart kResumed{.job = "j", .resume = true};
const JobStart kRestarted{.job = "j", .restarted = true};
const JobStart kResumedOther{.job = "j", .resume = true, .other_run = true};
const JobStart kResumedRestart{.job = "j", .restarted = true, .resume = true};

const FoundState kNothing{};
FoundState state(std::int64_t step, const char* run, std::optional<std::string> job = "j") {
  return {step, RunMark{run, std::move(job), 3}};
}

// A directory that belongs to run "a", with a newest checkpoint of run `run`.
FoundState copied(const char* run) {
  FoundState found = state(500, "a");
  found.newest = FoundOrigin{.step = 500, .run = run, .seed = 7};
  return found;
}
const FoundState kUnmarked{.step = 7, .mark = {}};
const FoundState kBegun{.step = {},
                        .mark = RunMark{"a", "j", {}}};  // a job that has saved nothing yet

FoundStates found(FoundState on_disk, std::vector<FoundState> in_memory = {kNothing, kNothing}) {
  return {.directory = "dir", .on_disk = std::move(on_disk), .in_memory = std::move(in_memory)};
}

std::string refusal(const JobStart& start, const FoundStates& states) {
  try {
    return "taken: " + find_ownership(start, states).run;
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInvalid ? error.what() : "another code";
  }
}

TEST(RunOwnership, a_first_start_takes_nothing_and_needs_unused_places) {
  EXPECT_EQ(find_ownership(kFirst, found(kNothing)).run, "");
  EXPECT_EQ(find_ownership(kFirst, found(kBegun)).run, "");
  EXPECT_THAT(refusal(kFirst, found(state(20, "a"))), Says("ownership.directory_used", "dir", 20));
  EXPECT_THAT(refusal(kFirst, found(kUnmarked)), Says("ownership.directory_used", "dir", 7));
  EXPECT_THAT(refusal(kFirst, found(kNothing, {kNothing, state(5, "a")})),
              Says("ownership.memory_used", 1, 5));
}

TEST(RunOwnership, resuming_continues_the_directorys_run) {
  EXPECT_EQ(find_ownership(kResumed, found(state(20, "a", "older"))).run, "a");
  EXPECT_EQ(find_ownership(kResumed, found(kUnmarked)).run, "");
  EXPECT_EQ(find_ownership(kResumed, found(kNothing)).run, "");
  EXPECT_EQ(find_ownership(kResumedRestart, found(state(20, "a", "older"))).run, "a");
}

TEST(RunOwnership, resuming_refuses_a_newest_checkpoint_of_another_run_and_shows_both) {
  EXPECT_THAT(refusal(kResumed, found(copied("b"))),
              Says("ownership.newest_of_another_run", "dir", "00000500", "run b (seed 7)",
                   "run a (seed 3)"));
}

TEST(RunOwnership, resuming_takes_another_runs_checkpoint_when_it_is_told_to) {
  const Ownership own = find_ownership(kResumedOther, found(copied("b")));
  EXPECT_EQ(own.run, "b");
  EXPECT_EQ(own.seed, 7U);
  EXPECT_EQ(find_ownership(kResumedOther, found(copied("a"))).run, "a");
}

TEST(RunOwnership, a_restart_goes_on_with_its_own_run_beside_anothers_checkpoint) {
  EXPECT_EQ(find_ownership(kRestarted, found(copied("b"))).run, "a");
  EXPECT_EQ(find_ownership(kResumedRestart, found(copied("b"))).run, "a");
  EXPECT_EQ(find_ownership(kResumedRestart, found(copied("b"))).seed, 3U);
}

TEST(RunOwnership, a_checkpoint_of_no_known_run_is_the_directorys) {
  EXPECT_EQ(find_ownership(kResumed, found(copied(""))).run, "a");
}

TEST(RunOwnership, a_directory_without_a_mark_is_of_its_newest_checkpoints_run) {
  FoundState disk = copied("b");
  disk.mark.reset();
  const Ownership own = find_ownership(kResumed, found(disk));
  EXPECT_EQ(own.run, "b");
  EXPECT_EQ(own.seed, 7U);
}

TEST(RunOwnership, resuming_takes_memory_of_the_same_run_only) {
  EXPECT_EQ(find_ownership(kResumed, found(state(2, "a"), {state(4, "a", "older")})).run, "a");
  EXPECT_EQ(find_ownership(kResumed, found(kNothing, {state(4, "b"), kNothing})).run, "b");
  EXPECT_EQ(find_ownership(kResumed, found(kUnmarked, {kUnmarked})).run, "");
  for (const FoundState& disk : {state(2, "a"), kBegun, kUnmarked}) {
    for (const JobStart& start : {kResumed, kResumedRestart}) {
      EXPECT_THAT(refusal(start, found(disk, {kNothing, state(500, "b")})),
                  Says("ownership.memory_of_another_run", 1, 500, "dir"));
    }
  }
  EXPECT_THAT(refusal(kResumed, found(kNothing, {state(4, "b"), state(3, "a")})),
              Says("ownership.memory_of_another_run", 1, 3, "dir"));
}

TEST(RunOwnership, a_restart_continues_what_its_own_job_has_left) {
  EXPECT_EQ(find_ownership(kRestarted, found(state(20, "a"))).run, "a");
  EXPECT_EQ(find_ownership(kRestarted, found(kBegun)).run, "a");
  EXPECT_EQ(find_ownership(kRestarted, found(kNothing)).run, "");
  // Rank 0 has moved to a host whose disk is empty.
  EXPECT_EQ(find_ownership(kRestarted, found(kNothing, {state(6, "a"), kNothing})).run, "a");
}

TEST(RunOwnership, a_restart_refuses_a_directory_of_another_job) {
  for (const FoundState& disk :
       {state(20, "a", "older"), state(20, "a", std::nullopt), kUnmarked}) {
    EXPECT_THAT(refusal(kRestarted, found(disk)), Says("ownership.not_of_this_job", "dir"));
    EXPECT_THAT(refusal(kRestarted, found(disk, {state(30, "b"), kNothing})),
                Says("ownership.not_of_this_job", "dir"));
  }
}

TEST(RunOwnership, a_restart_refuses_memory_as_its_first_start_did) {
  for (const FoundState& memory : {state(5, "b", "older"), kUnmarked}) {
    EXPECT_THAT(refusal(kRestarted, found(kNothing, {memory})),
                Says("ownership.memory_used", 0, *memory.step));
  }
}

TEST(RunOwnership, a_restart_forgets_what_a_newcomers_memory_has_of_another_run) {
  const auto own = find_ownership(
      kRestarted, found(state(20, "a"),
                        {state(22, "a"), state(500, "b"), kNothing, kUnmarked, state(19, "a")}));
  EXPECT_EQ(own.run, "a");
  EXPECT_THAT(own.stale_memory, ElementsAre(1, 3));
  EXPECT_THAT(find_ownership(kRestarted, found(kBegun, {state(5, "a")})).stale_memory, IsEmpty());
}

}  // namespace
}  // namespace paceline::train
