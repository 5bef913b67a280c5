// Records in a folder in which other users may have planted entries with the records' names.

#include <chrono>
#include <cstdlib>
#include <optional>

#include <gtest/gtest.h>

#include "paceline/engine/telemetry/call_gauge.h"
#include "paceline/engine/telemetry/call_gauge_file.h"
#include "paceline/engine/telemetry/flight_file.h"
#include "paceline/engine/telemetry/flight_recorder.h"
#include "paceline/engine/telemetry/step_gauge.h"
#include "paceline/engine/telemetry/timeline.h"
#include "paceline/engine/telemetry/timeline_file.h"

#include "tests/harness/planted.h"

namespace paceline {
namespace {

using harness::with_each_planted;
using namespace std::chrono_literals;

// The action must end, with or without an Error.
template <class Action>
void attempt(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_STRNE(error.what(), "");
  }
}

TEST(PlantedRecords, neither_lead_elsewhere_nor_hold_a_writer_up) {
  with_each_planted("rank-000.steps", [](const std::string& folder) {
    ::setenv("PACELINE_FLIGHT_DIR", folder.c_str(), 1);
    ::setenv("RANK", "0", 1);
    { StepGauge().step(8, 0.1, 0.01); }
    ::unsetenv("PACELINE_FLIGHT_DIR");
    ::unsetenv("RANK");
  });
  with_each_planted("rank-000.calls", [](const std::string& folder) {
    const CallGauge gauge(folder + "/rank-000.calls", 0, "worker0");
  });
  with_each_planted("rank-000.flight", [](const std::string& folder) {
    attempt([&] { const FlightRecorder recorder({.directory = folder}); });
  });
  with_each_planted("rank-000-000.timeline", [](const std::string& folder) {
    attempt([&] { const Timeline timeline({.directory = folder}); });
  });
  with_each_planted("received.timeline", [](const std::string& folder) {
    attempt([&] { unpack_timeline("text", folder + "/received.timeline"); });
    attempt([&] { shift_timeline(folder + "/received.timeline", 1s, 1s); });
  });
}

TEST(PlantedRecords, hold_no_reader_up) {
  with_each_planted("rank-000.steps", [](const std::string& folder) {
    EXPECT_FALSE(read_step_gauge(folder + "/rank-000.steps"));
  });
  with_each_planted("rank-000.calls", [](const std::string& folder) {
    EXPECT_FALSE(read_call_gauge(folder + "/rank-000.calls"));
  });
  with_each_planted("rank-000.flight", [](const std::string& folder) {
    num_begun_in(folder + "/rank-000.flight");
    attempt([&] { read_flight(folder + "/rank-000.flight"); });
  });
  with_each_planted("rank-000-000.timeline", [](const std::string& folder) {
    attempt([&] { read_timeline(folder + "/rank-000-000.timeline"); });
    attempt([&] { pack_timeline(folder + "/rank-000-000.timeline"); });
  });
}

}  // namespace
}  // namespace paceline
