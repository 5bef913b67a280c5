#include "paceline/engine/collectives/group/world_setup.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/topology.h"
#include "paceline/engine/telemetry/crash_reporter.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

namespace {

using Nanoseconds = std::chrono::nanoseconds::rep;

constexpr int kRoundTrips = 16;

Nanoseconds now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs on rank 0: answers each question of `peer` with the time.
void tell_time(ProcessGroup& group, int peer) {
  for (int i = 0; i < kRoundTrips; ++i) {
    Nanoseconds time = 0;
    group.recv(std::span(&time, 1), peer);
    time = now();
    group.send(std::span(&time, 1), peer);
  }
}

ClockOffset ask_time(ProcessGroup& group) {
  ClockOffset best{{}, std::chrono::nanoseconds::max()};
  for (int i = 0; i < kRoundTrips; ++i) {
    const Nanoseconds sent = now();
    Nanoseconds theirs = sent;
    group.send(std::span(&theirs, 1), 0);
    group.recv(std::span(&theirs, 1), 0);
    const Nanoseconds came = now();
    const std::chrono::nanoseconds error((came - sent + 1) / 2);
    if (error < best.error) {
      best = {std::chrono::nanoseconds(theirs - (sent + (came - sent) / 2)), error};
    }
  }
  return best;
}

}  // namespace

ClockOffset measure_clock_offset(ProcessGroup& group) {
  const Hosts& hosts = group.hosts();
  if (hosts.size() < 2) return {};
  const auto host_of = [&](int rank) { return hosts.host_of[static_cast<std::size_t>(rank)]; };
  ClockOffset own;
  for (const auto& members : hosts.members) {
    const int asker = members.front();
    if (host_of(asker) == host_of(0)) continue;
    if (group.rank() == 0) tell_time(group, asker);
    if (group.rank() == asker) own = ask_time(group);
  }
  const std::array<Nanoseconds, 2> mine = {own.offset.count(), own.error.count()};
  std::vector<Nanoseconds> all(mine.size() * static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::span(all), std::span(mine));
  const auto asker = static_cast<std::size_t>(hosts.neighbours(group.rank()).front());
  return {std::chrono::nanoseconds(all[2 * asker]), std::chrono::nanoseconds(all[2 * asker + 1])};
}

namespace {

// The most cores of a machine: the number of bits in a CoreSet.
constexpr std::size_t kMaxCores = 4096;
using CoreSet = std::array<std::uint8_t, kMaxCores / 8>;

bool does_not_set_threads(const std::string& launcher) {
  return launcher == "openmpi" || launcher == "pmi" || launcher == "slurm";
}

CoreSet own_cores() {
  CoreSet set{};
  for (const Core& core : discover_topology().cores) {
    const auto number = static_cast<std::size_t>(core.number);
    if (number < kMaxCores) set[number / 8] |= static_cast<std::uint8_t>(1U << number % 8);
  }
  return set;
}

std::vector<int> numbers_in(const CoreSet& set) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < kMaxCores; ++i) {
    if ((set[i / 8] >> i % 8 & 1) != 0) numbers.push_back(static_cast<int>(i));
  }
  return numbers;
}

// Sets OMP_NUM_THREADS for libraries that read it when they begin to compute, such as LibTorch, and
// calls an OpenMP runtime that is already loaded, because such a runtime has already read the
// variable. PACELINE_THREAD_SHARE marks that Paceline, not the user, set it.
void use_threads(int count) {
  for (const char* name : {"OMP_NUM_THREADS", "PACELINE_THREAD_SHARE"})
    setenv(name, std::to_string(count).c_str(), 1);
  auto* const set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(count);
}

}  // namespace

int thread_share(const std::vector<std::vector<int>>& cores, std::size_t self) {
  std::map<int, int> num_ranks;
  for (const auto& set : cores) {
    for (const int core : set) ++num_ranks[core];
  }
  double share = 0;
  for (const int core : cores[self]) share += 1.0 / num_ranks[core];
  constexpr double kRounding = 1e-6;
  return std::max(1, static_cast<int>(share + kRounding));
}

void share_cores(ProcessGroup& group, const std::string& launcher) {
  if (!does_not_set_threads(launcher) || group.world_size() == 1) return;
  const CoreSet own = own_cores();
  std::vector<std::uint8_t> all(own.size() * static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::span(all), std::span(own));
  const auto& neighbours = group.hosts().neighbours(group.rank());
  const char* chosen = std::getenv("OMP_NUM_THREADS");
  if (neighbours.size() < 2 || (chosen != nullptr && *chosen != '\0')) return;
  std::vector<std::vector<int>> cores;
  for (const int rank : neighbours) {
    CoreSet set;
    std::copy_n(all.begin() + rank * static_cast<std::ptrdiff_t>(set.size()), set.size(),
                set.begin());
    cores.push_back(numbers_in(set));
  }
  const int threads = thread_share(cores, group.hosts().local_index(group.rank()));
  use_threads(threads);
  log::info(
      fmt::format("{} started {} ranks on this host; this rank computes with {} "
                  "(set OMP_NUM_THREADS to change it)",
                  launcher, neighbours.size(), counted(threads, "thread")));
}

namespace {

// The value of a variable that is 1 or 0; false if it is not set.
bool is_set(const char* name) {
  const std::string value = process_environment()(name).value_or("0");
  check(value == "0" || value == "1", "{}={}: it must be 0 or 1", name, value);
  return value == "1";
}

// The value of PACELINE_TCP_STREAMS; 1 if it is not set.
int tcp_streams_from_environment() {
  const std::string value = process_environment()("PACELINE_TCP_STREAMS").value_or("1");
  const auto streams = parse_number<int>(value, 1, kMaxStreams);
  check(streams.has_value(), "PACELINE_TCP_STREAMS={}: it must be a number from 1 to {}", value,
        kMaxStreams);
  return *streams;
}

// The value of PACELINE_TIMEOUT; empty if it is not set.
std::optional<std::chrono::milliseconds> timeout_from_environment() {
  constexpr double kMinSeconds = 1e-3;
  constexpr double kMaxSeconds = 1e9;
  const auto value = process_environment()("PACELINE_TIMEOUT");
  if (!value) return {};
  const auto seconds = parse_number<double>(*value, kMinSeconds, kMaxSeconds);
  check(seconds.has_value(),
        "PACELINE_TIMEOUT={}: it must be a number of seconds, from {:g} to {:g}, that each "
        "operation of a group may take",
        *value, kMinSeconds, kMaxSeconds);
  return std::chrono::milliseconds(std::llround(*seconds * 1e3));
}

// Fills in the settings that the caller has left empty, from the environment.
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
  if (link.tcp_streams == 1) link.tcp_streams = tcp_streams_from_environment();
}

// Adds this rank to an error, if the options or the environment variables contain its number.
Error in_context_of_init(const RendezvousOptions& options, const Error& error) {
  constexpr const char* kDoing = "init_process_group";
  const Error known = error.with({.operation = kDoing, .group = "world"});
  try {
    const int rank = own_launch_environment(options).rank;
    return reported_by(rank_name(rank, rank), kDoing, known);
  } catch (const Error&) {
    return known.reworded(fmt::format("{}: {}", kDoing, error.what()));
  }
}

// Checks the options before the ranks meet, and reports an error in them to the other ranks.
GroupOptions checked_options(const InitOptions& options) {
  GroupOptions group = options.group;
  try {
    read_environment(group);
    require_possible(group);
    return group;
  } catch (const Error& error) {
    const Error named = in_context_of_init(options.rendezvous, error);
    decline_rendezvous(named, options.rendezvous);
    throw named;
  }
}

Rendezvous meet(const RendezvousOptions& options) {
  try {
    return rendezvous(options);
  } catch (const Error& error) {
    throw in_context_of_init(options, error);
  }
}

std::shared_ptr<ProcessGroup> form_world(Rendezvous meeting, const GroupOptions& group) {
  std::vector<int> ranks(static_cast<std::size_t>(meeting.environment.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  try {
    return std::make_shared<EngineGroup>(std::move(meeting), "world", std::move(ranks), group);
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
    group.timeline = open_timeline(meeting.environment.rank, meeting.environment.world_size,
                                   meeting.environment.restart_count, process_environment());
  }
  if (!group.recorder) {
    group.recorder =
        open_flight_recorder(meeting.environment, process_environment(), group.timeline);
  }
  if (meeting.environment.world_size > 1) log::set_rank(meeting.environment.rank);
  const std::string launcher = meeting.environment.launcher;
  auto world = form_world(std::move(meeting), group);
  share_cores(*world, launcher);
  const char* timeline = std::getenv("PACELINE_TIMELINE_DIR");
  if (timeline != nullptr && *timeline != '\0') {
    // A rank that could not open its own timeline still takes part in the measurement.
    const ClockOffset clock = measure_clock_offset(*world);
    if (group.timeline) group.timeline->set_clock(clock.offset, clock.error);
  }
  return world;
}

namespace {

void require_possible(const PartOfWorld& part) {
  const auto size = static_cast<int>(part.world_ranks.size());
  check(size > 0, "group {} has no ranks", part.name);
  check(part.rank >= 0 && part.rank < size, "group {}: rank {} is outside a group of {}", part.name,
        part.rank, size);
  check(part.store != nullptr, "group {}: there is no store in which its ranks can meet",
        part.name);
  for (const int rank : part.world_ranks) {
    check(rank >= 0 && rank < part.world_size, "group {}: {} is not a rank of a world of {}",
          part.name, rank, part.world_size);
  }
}

int world_rank_of(const PartOfWorld& part) {
  return part.world_ranks[static_cast<std::size_t>(part.rank)];
}

// The launcher's description of this process, if its rank and world size are those of `part`;
// otherwise an empty description.
LaunchEnvironment launched_as(const PartOfWorld& part) {
  try {
    LaunchEnvironment environment = detect_launch_environment();
    if (environment.rank == world_rank_of(part) && environment.world_size == part.world_size)
      return environment;
  } catch (const Error& error) {
    log::debug(std::string("the launcher's variables: ") + error.what());
  }
  return {};
}

// During the rendezvous, ranks are numbered within the group. Adds the group to the text of an
// error, and replaces the numbers in its context by ranks of the world.
Error in_context_of_part(const PartOfWorld& part, const Error& error) {
  std::vector<int> ranks;
  for (const int rank : error.ranks()) {
    const auto number = static_cast<std::size_t>(rank);
    if (number < part.world_ranks.size()) ranks.push_back(part.world_ranks[number]);
  }
  return Error(
      error.code(),
      fmt::format("rank {} of the world, forming group {} of ranks {}: {}", world_rank_of(part),
                  part.name, fmt::join(part.world_ranks, ", "), error.what()),
      {.operation = "init_process_group",
       .group = part.name,
       .ranks = std::move(ranks),
       .deadline = error.deadline()});
}

Rendezvous meet_part(const PartOfWorld& part, GroupOptions& group) {
  RendezvousOptions options{.rank = part.rank,
                            .world_size = static_cast<int>(part.world_ranks.size()),
                            .store = part.store};
  try {
    group = checked_options({options, part.group});
    options.timeout = group.timeout.value_or(GroupOptions::kDefaultTimeout);
    return rendezvous(options);
  } catch (const Error& error) {
    throw in_context_of_part(part, error);
  }
}

}  // namespace

std::shared_ptr<ProcessGroup> init_part_of_world(const PartOfWorld& part) {
  require_possible(part);
  report_crashes_to_launcher();
  GroupOptions group;
  Rendezvous meeting = meet_part(part, group);
  LaunchEnvironment environment = launched_as(part);
  environment.rank = world_rank_of(part);
  environment.world_size = part.world_size;
  environment.local_rank = meeting.environment.local_rank;
  environment.local_world_size = meeting.environment.local_world_size;
  meeting.environment = environment;
  if (!group.recorder) {
    group.recorder = open_flight_recorder(environment, process_environment(), group.timeline);
  }
  if (environment.world_size > 1) log::set_rank(environment.rank);
  try {
    return std::make_shared<EngineGroup>(std::move(meeting), part.name, part.world_ranks, group,
                                         EngineGroup::Parent{.failures = part.failures});
  } catch (const Error& error) {
    if (group.recorder) group.recorder->note_failure(error.what());
    throw;
  }
}

std::shared_ptr<FailureDomain> make_failure_domain() { return std::make_shared<FailureDomain>(); }

}  // namespace paceline
