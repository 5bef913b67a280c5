#include "paceline/engine/telemetry/timeline.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/engine/telemetry/timeline_file.h"

#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

Timeline::Clock::time_point at(std::chrono::nanoseconds time) {
  return Timeline::Clock::time_point(time);
}

RankTimeline only_one(const FreshDirectory& directory) {
  const auto paths = timelines_in(directory.path());
  EXPECT_EQ(paths.size(), 1u);
  return read_timeline(paths.at(0));
}

TEST(Timeline, gives_back_what_was_recorded_in_order_of_begin) {
  const FreshDirectory directory;
  Timeline timeline({.directory = directory.path(), .rank = 2, .world_size = 3, .generation = 4});
  timeline.name_group(1, "pipeline");
  timeline.add(SpanKind::kStep, 0, 42, at(5us), at(9us));
  timeline.add({.op = 3, .dtype = 1, .count = 1000, .sequence = 7, .group = 1, .failed = true},
               {.begin = 2000, .end = 2500});
  const RankTimeline read = only_one(directory);
  EXPECT_EQ(read.rank, 2);
  EXPECT_EQ(read.world_size, 3);
  EXPECT_EQ(read.generation, 4u);
  EXPECT_EQ(read.pid, getpid());
  EXPECT_EQ(read.groups.at(1), "pipeline");
  EXPECT_EQ(read.num_recorded, 2u);
  ASSERT_EQ(read.spans.size(), 2u);
  EXPECT_EQ(read.spans[0].kind, SpanKind::kOperation);
  EXPECT_EQ(read.spans[0].what, 3);
  EXPECT_EQ(read.spans[0].value, 1000);
  EXPECT_EQ(read.spans[0].sequence, 7u);
  EXPECT_EQ(read.spans[0].group, 1u);
  EXPECT_TRUE(read.spans[0].failed);
  EXPECT_EQ(read.spans[0].begin, 2000);
  EXPECT_EQ(read.spans[0].end, 2500);
  EXPECT_EQ(read.spans[1].kind, SpanKind::kStep);
  EXPECT_EQ(read.spans[1].value, 42);
}

TEST(Timeline, has_calls_with_names_of_methods_and_workers) {
  const FreshDirectory directory;
  Timeline timeline({.directory = directory.path()});
  const auto ask = timeline.name("ask"), observer = timeline.name("observer0");
  EXPECT_EQ(timeline.name("ask"), ask);
  timeline.add(
      {.kind = SpanKind::kHandler, .method = ask, .other = observer, .number = 77, .failed = true},
      {.begin = 2000, .end = 2500});
  for (int i = 0; i < 1000; ++i) timeline.name("method " + std::to_string(i));
  EXPECT_EQ(timeline.name("one more"), 0u);
  const RankTimeline read = only_one(directory);
  ASSERT_EQ(read.spans.size(), 1u);
  EXPECT_EQ(read.spans[0].kind, SpanKind::kHandler);
  EXPECT_EQ(read.names.at(read.spans[0].sequence), "ask");
  EXPECT_EQ(read.names.at(read.spans[0].group), "observer0");
  EXPECT_EQ(read.spans[0].value, 77);
  EXPECT_TRUE(read.spans[0].failed);
}

TEST(Timeline, is_one_for_all_who_open_it_in_a_process) {
  const FreshDirectory directory;
  const auto variable = [&](const std::string&) { return std::optional(directory.path()); };
  const auto group = open_timeline(1, 2, 0, variable);
  EXPECT_EQ(open_timeline(1, 2, 0, variable), group);
  EXPECT_NE(open_timeline(0, 2, 0, variable), group);
}

TEST(Timeline, moves_spans_by_the_clocks_offset) {
  const FreshDirectory directory;
  Timeline timeline({.directory = directory.path()});
  timeline.add(SpanKind::kStep, 0, 1, at(5us), at(9us));
  timeline.set_clock(-100us, 30ns);
  const RankTimeline read = only_one(directory);
  EXPECT_EQ(read.spans.at(0).begin, -95'000);
  EXPECT_EQ(read.spans.at(0).end, -91'000);
  EXPECT_EQ(read.clock_error, 30);
}

TEST(Timeline, keeps_the_newest_of_many_in_a_file_of_bounded_size) {
  const FreshDirectory directory;
  Timeline timeline({.directory = directory.path()});
  constexpr std::int64_t kMany = 100'000;
  for (std::int64_t i = 0; i < kMany; ++i) {
    timeline.add(SpanKind::kStep, 0, i, at(std::chrono::nanoseconds(i)), at(1s));
  }
  const RankTimeline read = only_one(directory);
  EXPECT_EQ(read.num_recorded, static_cast<std::uint64_t>(kMany));
  ASSERT_EQ(read.spans.size(), timeline::kNumSpans);
  EXPECT_EQ(read.spans.back().value, kMany - 1);
  EXPECT_EQ(read.spans.front().value, kMany - static_cast<std::int64_t>(timeline::kNumSpans));
  EXPECT_EQ(std::filesystem::file_size(timelines_in(directory.path())[0]), sizeof(timeline::File));
}

TEST(Timeline, several_threads_lose_nothing) {
  const FreshDirectory directory;
  Timeline timeline({.directory = directory.path()});
  constexpr int kThreads = 4;
  constexpr int kEach = 10'000;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kEach; ++i) {
          timeline.add(SpanKind::kStep, 0, thread * kEach + i, at(1us), at(2us));
        }
      });
    }
  }
  std::map<std::int64_t, int> seen;
  for (const auto& span : only_one(directory).spans) ++seen[span.value];
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kThreads * kEach));
}

TEST(Timeline, outlives_a_killed_process) {
  const FreshDirectory directory;
  const pid_t child = fork();
  if (child == 0) {
    Timeline timeline({.directory = directory.path()});
    timeline.add(SpanKind::kStep, 0, 7, at(1us), at(2us));
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(only_one(directory).spans.at(0).value, 7);
}

TEST(Timeline, has_the_phases_that_are_timed) {
  const FreshDirectory directory;
  PhaseTimes times(std::make_shared<Timeline>(TimelineOptions{.directory = directory.path()}));
  { const auto timed = times.measure(Phase::kForward); }
  times.add(Phase::kCommunication, 1.5);  // adds to the sum without a span
  const RankTimeline read = only_one(directory);
  ASSERT_EQ(read.spans.size(), 1u);
  EXPECT_EQ(read.spans[0].what, static_cast<std::uint8_t>(Phase::kForward));
  EXPECT_GT(times.seconds(Phase::kForward), 0);
}

TEST(TimelineFile, refuses_other_files_and_leaves_out_impossible_spans) {
  const FreshDirectory directory;
  const auto refuse = [&](const std::string& bytes) {
    EXPECT_THROW(read_timeline(directory.write("bad.timeline", bytes)), Error);
  };
  refuse("");
  refuse("PLTIMELN");
  refuse(std::string(sizeof(timeline::File), 'x'));
  EXPECT_THROW(read_timeline(directory.file("missing")), Error);
  EXPECT_THROW(timelines_in(directory.file("missing")), Error);

  std::filesystem::remove(directory.file("bad.timeline"));
  {
    Timeline timeline({.directory = directory.path()});
    for (int i = 0; i < 5; ++i) timeline.add(SpanKind::kStep, 0, i, at(1us), at(2us));
  }
  const std::string path = timelines_in(directory.path()).at(0);
  const auto put = [&](std::size_t number, std::size_t field, std::uint64_t value) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offsetof(timeline::File, spans) +
                                           number * sizeof(timeline::Span) + field));
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
  };
  put(1, offsetof(timeline::Span, stamp), 0);                // still being written
  put(2, offsetof(timeline::Span, begin), 1u << 31);         // ends before it begins
  put(3, offsetof(timeline::Span, end), ~std::uint64_t{0});  // later than any clock
  put(9, offsetof(timeline::Span, stamp), 9);                // never recorded
  const RankTimeline read = read_timeline(path);
  ASSERT_EQ(read.spans.size(), 2u);
  EXPECT_EQ(read.spans[0].value, 3);
  EXPECT_EQ(read.spans[1].value, 4);
}

TEST(Timeline, a_place_that_cannot_be_written_costs_a_warning_only) {
  const auto variable = [](const std::string&) -> std::optional<std::string> {
    return "/proc/nowhere";
  };
  EXPECT_EQ(open_timeline(0, 1, 0, variable), nullptr);
  EXPECT_EQ(open_timeline(0, 1, 0, [](const std::string&) { return std::nullopt; }), nullptr);
}

}  // namespace
}  // namespace paceline
