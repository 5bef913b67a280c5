#include "paceline/engine/collectives/group/init.h"

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>

#include "paceline/engine/collectives/group/clock_offset.h"
#include "paceline/engine/collectives/group/thread_share.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/rank_name.h"
#include "paceline/engine/core/standard_streams.h"
#include "paceline/engine/telemetry/crash_reporter.h"
#include "paceline/engine/telemetry/uncaught_errors.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {
namespace {

// 1 or 0; 0 when it is not set.
bool is_set(const char* name) {
  const std::string value = process_environment()(name).value_or("0");
  check(value == "0" || value == "1", "{}={}: it is 0 or 1", name, value);
  return value == "1";
}

// PACELINE_TCP_STREAMS; 1 when it is not set.
int tcp_streams_from_environment() {
  const std::string value = process_environment()("PACELINE_TCP_STREAMS").value_or("1");
  int streams = 0;
  const auto end = value.data() + value.size();
  const auto read = std::from_chars(value.data(), end, streams);
  check(read.ec == std::errc() && read.ptr == end && streams >= 1 && streams <= kMaxStreams,
        "PACELINE_TCP_STREAMS={}: it is a number from 1 to {}", value, kMaxStreams);
  return streams;
}

// PACELINE_TIMEOUT; empty when it is not set.
std::optional<std::chrono::milliseconds> timeout_from_environment() {
  constexpr double kLeast = 1e-3;
  constexpr double kMost = 1e9;
  const auto value = process_environment()("PACELINE_TIMEOUT");
  if (!value) return {};
  const auto end = value->data() + value->size();
  double seconds = 0;
  const auto read = std::from_chars(value->data(), end, seconds);
  check(read.ec == std::errc() && read.ptr == end && seconds >= kLeast && seconds <= kMost,
        "PACELINE_TIMEOUT={}: it is a number of seconds, from {:g} to {:g}, that each operation of "
        "a group may take",
        *value, kLeast, kMost);
  return std::chrono::milliseconds(std::llround(seconds * 1e3));
}

// The group's settings from the environment, where the caller gives none.
void read_environment(GroupOptions& group) {
  const GetVariable variable = process_environment();
  const auto transport = variable("PACELINE_TRANSPORT");
  LinkOptions& link = group.link;
  if (link.transport == TransportKind::kAuto && transport) {
    link.transport = parse_transport(*transport);
  }
  if (group.backend.empty()) group.backend = variable("PACELINE_BACKEND").value_or("");
  if (!group.timeout) group.timeout = timeout_from_environment();
  if (!link.encrypt) link.encrypt = is_set("PACELINE_ENCRYPT");
  if (!group.planning.by_package) group.planning.by_package = is_set("PACELINE_BY_PACKAGE");
  if (link.tcp_streams == 1) link.tcp_streams = tcp_streams_from_environment();
}

// Without a rank where the variables do not tell it.
Error said_of_init(const RendezvousOptions& options, const Error& error) {
  constexpr const char* kDoing = "init_process_group";
  try {
    const int rank = who_am_i(options).rank;
    return said_by(rank_name(rank, rank), kDoing, error);
  } catch (const Error&) {
    return Error(error.code(), fmt::format("{}: {}", kDoing, error.what()));
  }
}

// Before the ranks meet; the others are told what is wrong here.
GroupOptions checked_options(const InitOptions& options) {
  GroupOptions group = options.group;
  try {
    read_environment(group);
    require_possible(group);
    return group;
  } catch (const Error& error) {
    const Error named = said_of_init(options.rendezvous, error);
    decline_rendezvous(named, options.rendezvous);
    throw named;
  }
}

Rendezvous meet(const RendezvousOptions& options) {
  try {
    return rendezvous(options);
  } catch (const Error& error) {
    throw said_of_init(options, error);
  }
}

std::shared_ptr<ProcessGroup> form_world(Rendezvous meeting, const GroupOptions& group) {
  std::vector<int> ranks(static_cast<std::size_t>(meeting.who.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  try {
    return std::make_shared<ProcessGroup>(std::move(meeting), "world", std::move(ranks), group);
  } catch (const Error& error) {
    if (group.recorder) group.recorder->note_failure(error.what());
    throw;
  }
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  hold_standard_streams();
  report_crashes_to_launcher();
  report_uncaught_errors();
  GroupOptions group = checked_options(options);
  Rendezvous meeting = meet(options.rendezvous);
  if (!group.timeline) {
    group.timeline = open_timeline(meeting.who.rank, meeting.who.world_size,
                                   meeting.who.restart_count, process_environment());
  }
  if (!group.recorder) {
    group.recorder = open_flight_recorder(meeting.who, process_environment(), group.timeline);
  }
  if (meeting.who.world_size > 1) log::set_rank(meeting.who.rank);
  const std::string launcher = meeting.who.launcher;
  auto world = form_world(std::move(meeting), group);
  share_cores(*world, launcher);
  const char* timeline = std::getenv("PACELINE_TIMELINE_DIR");
  if (timeline != nullptr && *timeline != '\0') {
    // A rank that could not open its own takes part all the same.
    const ClockOffset clock = measure_clock_offset(*world);
    if (group.timeline) group.timeline->set_clock(clock.offset, clock.error);
  }
  return world;
}

}  // namespace paceline
