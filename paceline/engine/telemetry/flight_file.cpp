#include "paceline/engine/telemetry/flight_file.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <tuple>

#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/engine/telemetry/record_file.h"

namespace paceline {
namespace {

constexpr int kMaxRanks = 1 << 24;
// A file is read at most this often, until no record in it is being written. A record that a killed
// process left incomplete stays incomplete.
constexpr int kReadings = 3;

template <class... Args>
void require(bool condition, const std::string& name, fmt::format_string<Args...> format,
             Args&&... args) {
  if (!condition) {
    fail(ErrorCode::kCorrupt, "{} is not a flight file, or is damaged: {}", name,
         fmt::format(format, std::forward<Args>(args)...));
  }
}

void require_header(const flight::Header& header, const std::string& name) {
  require(header.magic == flight::kMagic, name, "it does not begin with PLFLIGHT");
  if (header.version != flight::kVersion) {
    fail(ErrorCode::kUnsupported, "{} has format version {}; this program reads version {}", name,
         header.version, flight::kVersion);
  }
}

void require_fields(const flight::Header& header, const std::string& name) {
  require(
      header.num_operations == flight::kNumOperations && header.num_groups == flight::kNumGroups,
      name, "it has room for {} operations and {} groups", header.num_operations,
      header.num_groups);
  require(header.world_size >= 1 && header.world_size <= kMaxRanks && header.rank >= 0 &&
              header.rank < header.world_size,
          name, "rank {} of {}", header.rank, header.world_size);
  require(header.pid > 0, name, "process {}", header.pid);
  require(header.end <= static_cast<std::uint32_t>(FlightEnd::kException), name,
          "unknown end state {}", header.end);
  require(header.failure_length <= flight::kFailureBytes, name, "a failure of {} bytes",
          header.failure_length);
}

Flight from_header(const flight::Header& header) {
  Flight flight;
  flight.rank = header.rank;
  flight.world_size = header.world_size;
  flight.generation = header.generation;
  flight.pid = header.pid;
  flight.process_start = header.process_start;
  flight.opened = header.opened;
  flight.opened_wall = header.opened_wall;
  flight.boot = printable(header.boot);
  flight.pid_namespace = printable(header.pid_namespace);
  flight.host = printable(header.host);
  flight.job = printable(header.job);
  flight.end = static_cast<FlightEnd>(header.end);
  flight.failure = printable(header.failure.data(), header.failure_length);
  flight.num_begun = header.next;
  flight.num_dropped = header.dropped;
  return flight;
}

std::vector<FlightGroup> groups_of(const flight::File& file, const std::string& name) {
  std::vector<FlightGroup> groups;
  for (std::size_t i = 0; i < file.groups.size(); ++i) {
    const flight::Group& group = file.groups[i];
    if ((group.stamp & 1) != 0) continue;  // empty, or being written
    const std::uint64_t number = group.stamp >> 1;
    require(number % flight::kNumGroups == i && number <= UINT32_MAX, name,
            "group {} is in slot {}", number, i);
    require(group.world_size >= 1 && group.world_size <= kMaxRanks && group.rank >= 0 &&
                group.rank < group.world_size && group.name_length <= flight::kNameBytes,
            name, "group {}: rank {} of {}, a name of {} bytes", number, group.rank,
            group.world_size, group.name_length);
    groups.push_back({static_cast<std::uint32_t>(number), group.hash,
                      printable(group.name.data(), group.name_length), group.rank, group.world_size,
                      group.generation});
  }
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return groups;
}

bool is_whole(const flight::Operation& operation) {
  return (operation.stamp & 1) == 0 &&
         operation.check ==
             flight::check_of(
                 std::bit_cast<std::array<std::uint64_t, flight::kNumWords>>(operation));
}

FlightOperation decode(const flight::Operation& raw, std::size_t place, const std::string& name) {
  FlightOperation operation;
  operation.id = raw.stamp >> 8;
  require(operation.id > 0 && operation.id % flight::kNumOperations == place, name,
          "operation {} is in slot {}", operation.id, place);
  require(raw.state >= static_cast<std::uint8_t>(FlightState::kEntered) &&
              raw.state <= static_cast<std::uint8_t>(FlightState::kFailed),
          name, "operation {} in state {}", operation.id, raw.state);
  require(raw.dtype < kAllDtypes.size(), name, "operation {} on type {}", operation.id, raw.dtype);
  require(raw.error <= 1 + static_cast<int>(ErrorCode::kSystem), name, "operation {} with error {}",
          operation.id, raw.error);
  require(raw.peer >= -1 && raw.peer < kMaxRanks, name, "operation {} with peer {}", operation.id,
          raw.peer);
  operation.call = {raw.op,
                    raw.reduce_op,
                    static_cast<Dtype>(raw.dtype),
                    raw.asynchronous != 0,
                    raw.group,
                    raw.peer,
                    raw.tag,
                    raw.count,
                    raw.group_hash};
  operation.sequence = raw.sequence;
  operation.state = static_cast<FlightState>(raw.state);
  if (raw.error > 0) operation.error = static_cast<ErrorCode>(raw.error - 1);
  operation.thread = raw.thread;
  operation.entered = raw.entered;
  operation.started = raw.started;
  operation.ended = raw.ended;
  operation.entered_wall = raw.entered_wall;
  return operation;
}

void take_operations(const flight::File& file, const std::string& name, Flight& flight) {
  for (std::size_t place = 0; place < file.operations.size(); ++place) {
    const flight::Operation& raw = file.operations[place];
    if (raw.stamp == 0) continue;
    if (is_whole(raw)) {
      flight.operations.push_back(decode(raw, place, name));
    } else {
      ++flight.num_torn;
    }
  }
  std::sort(flight.operations.begin(), flight.operations.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
}

std::vector<std::byte> read_bytes(const std::string& path) {
  const Fd file = open_to_read(path);
  if (!file)
    fail(ErrorCode::kSystem, "{} cannot be opened: {}", path, describe_refusal(path, errno));
  std::vector<std::byte> bytes(sizeof(flight::File) + 1);  // one byte more, to notice a longer file
  const ssize_t got = read_whole(file.get(), bytes);
  if (got < 0) throw system_error("reading " + path);
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

// Drops the files of earlier jobs, which would contradict the files of the newest job.
void keep_newest_job(FlightDirectory& found) {
  if (found.flights.empty()) return;
  const auto key = [](const Flight& flight) {
    return std::tuple(flight.job, flight.world_size, flight.generation);
  };
  const auto newest = key(*std::max_element(
      found.flights.begin(), found.flights.end(),
      [](const Flight& a, const Flight& b) { return a.opened_wall < b.opened_wall; }));
  std::erase_if(found.flights, [&](const Flight& flight) {
    const bool is_older = key(flight) != newest;
    if (is_older) {
      found.problems.push_back(
          fmt::format("{} belongs to an earlier job or generation", flight_file_name(flight.rank)));
    }
    return is_older;
  });
}

}  // namespace

ProcessSight look_at_process(const std::string& boot, const std::string& its_namespace, int pid,
                             std::uint64_t start) {
  if (boot != boot_id()) return {};
  ProcessSight sight;
  sight.now = static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
  if (its_namespace != pid_namespace()) return sight;
  const auto status = process_status(pid);
  if (!status || status->start_ticks != start || status->state == 'Z' || status->state == 'X') {
    sight.process = FlightProcess::kGone;
  } else {
    const bool is_stopped = status->state == 'T' || status->state == 't';
    sight.process = is_stopped ? FlightProcess::kStopped : FlightProcess::kRunning;
  }
  return sight;
}

std::string flight_file_name(int rank) { return fmt::format("rank-{:03}.flight", rank); }

Flight parse_flight(std::span<const std::byte> bytes, const std::string& name) {
  // The magic and the version, which every version of the format begins with.
  constexpr std::size_t kFixedBytes = sizeof(flight::kMagic) + sizeof(flight::kVersion);
  require(bytes.size() >= kFixedBytes, name, "it has {} bytes", bytes.size());
  flight::Header begin{};
  std::memcpy(static_cast<void*>(&begin), bytes.data(), kFixedBytes);
  require_header(begin, name);
  require(bytes.size() == sizeof(flight::File), name, "it has {} bytes instead of {}{}",
          std::min(bytes.size(), sizeof(flight::File) + 1), sizeof(flight::File),
          bytes.size() > sizeof(flight::File) ? " (or more)" : "");
  const auto file = std::make_unique<flight::File>();
  std::memcpy(static_cast<void*>(file.get()), bytes.data(), sizeof(flight::File));
  require_fields(file->header, name);
  Flight flight = from_header(file->header);
  flight.groups = groups_of(*file, name);
  take_operations(*file, name, flight);
  return flight;
}

std::uint64_t num_begun_in(const std::string& path) noexcept {
  const Fd file = open_to_read(path);
  std::uint64_t begun = 0;
  constexpr auto kOffset = static_cast<off_t>(offsetof(flight::Header, next));
  const auto into = std::as_writable_bytes(std::span(&begun, 1));
  return file && read_whole_at(file.get(), kOffset, into) == sizeof begun ? begun : 0;
}

Flight read_flight(const std::string& path) {
  Flight flight;
  for (int reading = 0; reading < kReadings; ++reading) {
    flight = parse_flight(read_bytes(path), path);
    if (flight.num_torn == 0) break;
  }
  const ProcessSight sight =
      look_at_process(flight.boot, flight.pid_namespace, flight.pid, flight.process_start);
  flight.now = sight.now;
  flight.process = sight.process;
  return flight;
}

FlightDirectory read_flights(const std::string& directory) {
  FlightDirectory found;
  std::error_code error;
  auto paths = records_in(directory, ".flight", error);
  std::erase_if(paths, [](const std::string& path) {
    return !std::filesystem::path(path).filename().native().starts_with("rank-");
  });
  if (error) {
    fail(ErrorCode::kSystem, "reading the directory {}: {}", directory, error.message());
  }
  check(!paths.empty(), "{} has no flight files (rank-000.flight and so on)", directory);
  for (const std::string& path : paths) {
    try {
      Flight flight = read_flight(path);
      const std::string name = std::filesystem::path(path).filename();
      require(name == flight_file_name(flight.rank), path, "it was written by rank {}",
              flight.rank);
      found.flights.push_back(std::move(flight));
    } catch (const Error& problem) {
      found.problems.emplace_back(problem.what());
    }
  }
  keep_newest_job(found);
  std::sort(found.flights.begin(), found.flights.end(),
            [](const Flight& a, const Flight& b) { return a.rank < b.rank; });
  std::sort(found.problems.begin(), found.problems.end());
  return found;
}

}  // namespace paceline
