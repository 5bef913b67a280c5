#include "paceline/launcher/job_timeline/timeline_trace.h"

#include <filesystem>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/engine/telemetry/timeline.h"
#include "paceline/engine/telemetry/timeline_file.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/planted.h"
#include "tests/harness/says.h"
#include "tests/launcher/job_timeline/trace_reader.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using nlohmann::json;
using testing::HasSubstr;

Timeline::Clock::time_point at(std::chrono::nanoseconds time) {
  return Timeline::Clock::time_point(time);
}

// Objects are planted at the name of the trace, and at the name that it has until it is complete.
TEST(TimelineTrace, replaces_planted_links_and_fifos_and_follows_none) {
  for (const char* name : {"trace.json", "trace.json.part"}) {
    harness::with_each_planted(name, [&](const std::string& folder) {
      const FreshDirectory records;
      { const Timeline timeline({.directory = records.path()}); }
      const std::string output = folder + "/trace.json";
      const bool is_folder =
          std::filesystem::is_directory(std::filesystem::symlink_status(folder + "/" + name));
      EXPECT_EQ(obstacle_to_trace(output) != "", is_folder);
      try {
        write_trace(timelines_in(records.path()), output);
        EXPECT_FALSE(is_folder);
        EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(output)));
      } catch (const Error& error) {
        EXPECT_TRUE(is_folder) << error.what();
      }
    });
  }
}

TEST(TimelineTrace, has_all_ranks_on_one_clock) {
  const FreshDirectory directory;
  for (int rank = 0; rank < 2; ++rank) {
    Timeline timeline({.directory = directory.path(), .rank = rank, .world_size = 2});
    timeline.name_group(0, "world \"quoted\\");
    timeline.set_clock(rank * -1ms, rank * 1us);
    const auto shift = rank * 1ms;  // the clock of this host is ahead by this much
    timeline.add(SpanKind::kStep, 0, 9, at(100us + shift), at(300us + shift));
    timeline.add(SpanKind::kPhase, static_cast<std::uint8_t>(Phase::kBackward), 0,
                 at(100us + shift), at(250us + shift));
    timeline.add({.op = 0, .count = 64, .sequence = 3},
                 {static_cast<std::uint64_t>((200us + shift).count()) * 1000, 1'240'001});
  }
  const std::string output = directory.file("trace.json");
  const TraceSummary summary = write_trace(timelines_in(directory.path()), output);
  EXPECT_EQ(summary.num_spans, 6u);
  EXPECT_EQ(summary.num_files, 2u);
  EXPECT_THAT(describe(summary), Says("agent.timeline", 6, 2, 1));
  EXPECT_EQ(json::parse(read_text(output)).at("otherData").at("clock_error_us"), 1.0);
  const auto spans = strict_spans(output);
  ASSERT_EQ(spans.size(), 6u);
  for (const json& span : spans) {
    if (span["name"] == "step") {
      EXPECT_EQ(span["ts"], 0.0);
      EXPECT_EQ(span["dur"], 200.0);
      EXPECT_EQ(span["args"]["step"], 9);
    } else if (span["name"] == "all_reduce") {
      EXPECT_EQ(span["ts"], 100.0);
      EXPECT_EQ(span["args"]["elements"], 64);
      EXPECT_EQ(span["args"]["sequence"], 3);
    } else {
      EXPECT_EQ(span["name"], "backward");
    }
  }
  EXPECT_THAT(read_text(output), HasSubstr(R"(collectives of world \"quoted\\)"));
}

TEST(TimelineTrace, an_arrow_leads_from_a_call_to_its_handler) {
  const FreshDirectory directory;
  for (int rank = 0; rank < 2; ++rank) {
    Timeline timeline({.directory = directory.path(), .rank = rank, .world_size = 2});
    timeline.add({.kind = rank == 0 ? SpanKind::kCall : SpanKind::kHandler,
                  .method = timeline.name("ask"),
                  .other = timeline.name(rank == 0 ? "observer0" : "trainer0"),
                  .number = 0xfedcba9876543210},
                 {1000 + 200 * static_cast<std::uint64_t>(rank), 2000});
  }
  const std::string output = directory.file("trace.json");
  write_trace(timelines_in(directory.path()), output);
  const auto spans = strict_spans(output);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "ask");
  EXPECT_EQ(spans[0]["args"]["worker"], "observer0");
  EXPECT_EQ(spans[1]["args"]["worker"], "trainer0");
  std::map<std::string, json> ends;
  const json trace = json::parse(read_text(output));
  for (const json& event : trace["traceEvents"]) {
    const std::string kind = event["ph"];
    if (kind == "s" || kind == "f") ends[kind] = event;
  }
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends["s"]["id"], "fedcba9876543210");
  EXPECT_EQ(ends["s"]["id"], ends["f"]["id"]);
  EXPECT_EQ(ends["s"]["ts"], spans[0]["ts"]);
  EXPECT_EQ(ends["f"]["ts"], spans[1]["ts"]);
  EXPECT_EQ(ends["f"]["pid"], 1);
  EXPECT_EQ(ends["f"]["bp"], "e");
}

TEST(TimelineTrace, spans_that_overlap_get_tracks_of_their_own) {
  const FreshDirectory directory;
  Timeline timeline({.directory = directory.path()});
  for (std::uint64_t i = 0; i < 200; ++i) {
    timeline.add({.op = 9, .count = 1}, {1000 * i, 1000 * i + 1 + 997 * (i * 7 % 5)});
  }
  const std::string output = directory.file("trace.json");
  write_trace(timelines_in(directory.path()), output);
  std::set<int> tracks;
  const auto spans = strict_spans(output);
  for (const json& span : spans) tracks.insert(span["tid"].get<int>());
  EXPECT_EQ(spans.size(), 200u);
  EXPECT_GT(tracks.size(), 1u);
  EXPECT_LT(tracks.size(), 6u);
}

TEST(TimelineTrace, an_unreadable_timeline_is_left_out_and_reported) {
  const FreshDirectory directory;
  { Timeline timeline({.directory = directory.path()}); }
  const std::string bad = directory.write("rank-009-000.timeline", "nonsense");
  const std::string output = directory.file("trace.json");
  const TraceSummary summary = write_trace(timelines_in(directory.path()), output);
  EXPECT_EQ(summary.num_files, 1u);
  ASSERT_EQ(summary.problems.size(), 1u);
  EXPECT_THAT(summary.problems[0], HasSubstr(bad));
  EXPECT_TRUE(strict_spans(output).empty());
  EXPECT_THROW(write_trace({bad}, output), Error);
  EXPECT_THROW(write_trace({}, output), Error);
}

TEST(TimelineTrace, a_trace_that_cannot_be_written_leaves_the_old_one) {
  const FreshDirectory directory;
  { Timeline timeline({.directory = directory.path()}); }
  EXPECT_THROW(write_trace(timelines_in(directory.path()), "/proc/nowhere/trace.json"), Error);
  const std::string output = directory.write("trace.json", "old");
  std::filesystem::create_directory(output + ".part");
  EXPECT_THROW(write_trace(timelines_in(directory.path()), output), Error);
  EXPECT_EQ(read_text(output), "old");
}

TEST(TimelineTrace, a_rank_that_was_started_again_is_one_rank) {
  const FreshDirectory first, second;
  std::vector<std::string> paths;
  for (const FreshDirectory* start : {&first, &second}) {
    for (int rank = 0; rank < 2; ++rank) {
      Timeline timeline({.directory = start->path(), .rank = rank, .world_size = 2});
      timeline.add(SpanKind::kStep, 0, 1, at(100us), at(200us));
    }
    for (const auto& path : timelines_in(start->path())) paths.push_back(path);
  }
  const TraceSummary summary = write_trace(paths, first.file("trace.json"));
  EXPECT_EQ(summary.num_files, 4u);
  EXPECT_EQ(describe(summary), "4 spans of 2 ranks");
}

}  // namespace
}  // namespace paceline::launcher
