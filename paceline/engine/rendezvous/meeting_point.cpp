#include "paceline/engine/rendezvous/meeting_point.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline {

namespace {

constexpr int kGreatestPort = 65535;

bool all_local(const LaunchEnvironment& environment) {
  return environment.local_world_size == environment.world_size;
}

// The first port of "12000-12003", if the administrator has SLURM reserve ports for steps.
std::optional<int> first_reserved_port(const GetVariable& variable) {
  constexpr const char* kName = "SLURM_STEP_RESV_PORTS";
  const auto text = variable(kName);
  if (!text) return std::nullopt;
  const auto first = [&](const std::string&) {
    return std::optional(text->substr(0, text->find_first_of("-,")));
  };
  return read_number(first, kName, kGreatestPort);
}

// A port that is the same on all ranks of a step. The tasks of a job array are jobs with
// consecutive numbers; up to kCount / kSteps of these jobs get different ports, and so do the first
// kSteps steps of each job.
std::uint16_t step_port(const GetVariable& variable) {
  if (const auto port = first_reserved_port(variable)) return static_cast<std::uint16_t>(*port);
  constexpr std::uint32_t kFirst = 15'000, kCount = 16'384;  // below the ephemeral ports
  constexpr std::uint32_t kSteps = 16;
  const auto number = [&](const char* name) {
    return static_cast<std::uint32_t>(read_number(variable, name).value_or(0));
  };
  const std::uint32_t key = number("SLURM_JOB_ID") * kSteps + number("SLURM_STEP_ID");
  return static_cast<std::uint16_t>(kFirst + key % kCount);
}

// The port of rank 0's store. Under torchrun MASTER_PORT belongs to torchrun's own store, so ours
// has the next port.
std::uint16_t store_port(const GetVariable& variable, std::optional<std::uint16_t> otherwise = {}) {
  if (const auto port = read_number(variable, "PACELINE_STORE_PORT", kGreatestPort)) {
    return static_cast<std::uint16_t>(*port);
  }
  const auto port = read_number(variable, "MASTER_PORT", kGreatestPort);
  if (!port && otherwise) return *otherwise;
  check(port && *port > 0,
        "MASTER_PORT is not set (or 0): name the port of rank 0's store, for "
        "example MASTER_PORT=29500");
  const bool taken = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  check(!taken || *port < kGreatestPort,
        "MASTER_PORT={} is the highest port, but the store needs the next one", *port);
  return static_cast<std::uint16_t>(*port + (taken ? 1 : 0));
}

MeetingPoint notice_for(const std::string& job, const LaunchEnvironment& environment) {
  return {.kind = MeetingPoint::Kind::kNotice,
          .job = fmt::format("{}-{}-{}", environment.launcher, job, environment.restart_count)};
}

std::string command_with_address(const LaunchEnvironment& environment) {
  const std::string values = "MASTER_ADDR=FIRST_HOST MASTER_PORT=29500";
  if (environment.launcher == "openmpi") {
    return "mpirun -x MASTER_ADDR=FIRST_HOST -x MASTER_PORT=29500 " + own_command();
  }
  return values + " " + own_command();
}

// SLURM puts task 0 on the first node of a step.
std::string first_node_of_step(const GetVariable& variable) {
  const std::string list = variable("SLURM_STEP_NODELIST").value_or("");
  const auto nodes = expand_node_list(list);
  check(
      nodes && !nodes->empty(),
      "MASTER_ADDR is not set, and SLURM_STEP_NODELIST='{}' is not a list of nodes: say where rank "
      "0 hosts the store: MASTER_ADDR=FIRST_HOST MASTER_PORT=29500 srun {}",
      list, own_command());
  return nodes->front();
}

MeetingPoint from_environment(const LaunchEnvironment& environment, const GetVariable& variable) {
  if (const auto store = variable("PACELINE_STORE")) {
    return {.kind = MeetingPoint::Kind::kLauncher,
            .endpoint = parse_endpoint(*store, "PACELINE_STORE")};
  }
  const auto address = variable("MASTER_ADDR");
  const bool has_address = address && !address->empty();
  if (environment.launcher == "torchrun" && all_local(environment) && has_address) {
    return notice_for(*address + "-" + std::to_string(store_port(variable)), environment);
  }
  if (has_address) {
    return {.kind = MeetingPoint::Kind::kRankZero,
            .endpoint = {parse_host(*address, "MASTER_ADDR"), store_port(variable)}};
  }
  if (all_local(environment) && !environment.job_id.empty())
    return notice_for(environment.job_id, environment);
  if (environment.launcher == "slurm") {
    return {.kind = MeetingPoint::Kind::kRankZero,
            .endpoint = {first_node_of_step(variable), store_port(variable, step_port(variable))}};
  }
  fail(ErrorCode::kInvalid,
       "MASTER_ADDR is not set: rank {} of {} ({}) does not know where the others are. Say where "
       "rank 0 hosts the store: {}",
       environment.rank, environment.world_size, environment.launcher,
       command_with_address(environment));
}

}  // namespace

MeetingPoint find_meeting_point(const std::string& init_method,
                                const LaunchEnvironment& environment, const GetVariable& variable) {
  if (init_method == "env://") return from_environment(environment, variable);
  if (init_method.starts_with("tcp://")) {
    const auto endpoint = parse_endpoint(init_method.substr(6), "init_method " + init_method);
    check(endpoint.port != 0, "init_method {}: the port must be above 0", init_method);
    return {.kind = MeetingPoint::Kind::kRankZero, .endpoint = endpoint};
  }
  if (init_method.starts_with("file:///")) {
    return {.kind = MeetingPoint::Kind::kFile, .path = init_method.substr(7)};
  }
  fail(ErrorCode::kInvalid, "unknown init_method '{}'; use env://, tcp://HOST:PORT or file:///PATH",
       init_method);
}

namespace {

struct Boards {
  std::vector<std::string> directories;  // in the order in which rank 0 tries them
  std::string problem;                   // why XDG_RUNTIME_DIR is not among them
};

// The boards of this user on this host, equal for every rank.
Boards boards_for(const GetVariable& variable) {
  Boards boards;
  const auto runtime = variable("XDG_RUNTIME_DIR");
  if (runtime && !runtime->empty()) {
    struct stat status {};
    if (::stat(runtime->c_str(), &status) != 0) {
      boards.problem = fmt::format("XDG_RUNTIME_DIR={}: {}", *runtime, std::strerror(errno));
    } else if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) {
      boards.problem =
          fmt::format("XDG_RUNTIME_DIR={} is not a directory of user {}", *runtime, ::geteuid());
    } else {
      boards.directories.push_back(*runtime + "/paceline");
    }
  }
  boards.directories.push_back(fmt::format("/tmp/paceline-{}", ::geteuid()));
  return boards;
}

// Returns false when the directory does not exist. Throws Error(kInvalid) when other users can
// enter it.
bool is_private_directory(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return false;
    throw system_error("stat " + path);
  }
  check(S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0,
        "{} must be a directory of user {} that no other user may enter (mode 0700): remove it or "
        "set XDG_RUNTIME_DIR",
        path, ::geteuid());
  return true;
}

void make_private_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) throw system_error("mkdir " + path);
  if (!is_private_directory(path)) throw system_error("stat " + path);
}

bool is_older(const struct stat& one, const struct stat& other) {
  const auto moment = [](const struct stat& status) {
    return std::pair(status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  };
  return moment(one) < moment(other);
}

std::string file_name(std::string job) {
  for (char& c : job) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.';
    if (!plain) c = '_';
  }
  return job.substr(0, 200) + ".job";
}

}  // namespace

Bulletin::Bulletin(const GetVariable& variable, const std::string& job) {
  Boards boards = boards_for(variable);
  problem_ = std::move(boards.problem);
  for (const std::string& directory : boards.directories) {
    is_private_directory(directory);
    places_.push_back(directory + "/" + file_name(job));
  }
  path_ = places_.front();
}

void Bulletin::publish(const Endpoint& endpoint, const Secret& secret) {
  const std::string text = to_string(endpoint) + " " + secret.to_hex() + "\n";
  for (const std::string& place : places_) {
    try {
      make_private_directory(place.substr(0, place.rfind('/')));
      replace_file(place, text, 0600);
      path_ = place;
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kSystem || place == places_.back()) throw;
      problem_ = error.what();
    }
  }
  for (const std::string& place : places_) {
    if (place != path_)
      ::unlink(place.c_str());  // a notice of an earlier job, which ranks could read first
  }
  if (!problem_.empty()) {
    log::warning(
        fmt::format("{}; the ranks of this host meet through {} instead", problem_, path_));
  }
}

std::optional<JobNotice> Bulletin::read() const {
  Fd newest;
  std::string path;
  struct stat status {
  }, newest_status{};
  for (const std::string& place : places_) {
    if (!is_private_directory(place.substr(0, place.rfind('/')))) continue;
    Fd file(::open(place.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file && errno == ENOENT) continue;
    if (!file || ::fstat(file.get(), &status) != 0) throw system_error("opening " + place);
    if (newest && !is_older(newest_status, status)) continue;
    newest = std::move(file);
    newest_status = status;
    path = place;
  }
  if (!newest) return std::nullopt;
  char buffer[512];
  const ssize_t got = read_whole(newest.get(), std::as_writable_bytes(std::span(buffer)));
  if (got < 0) throw system_error("reading " + path);
  const std::string text(buffer, static_cast<std::size_t>(got));
  const auto space = text.find(' ');
  check(space != std::string::npos, "{} is not a notice of Paceline; remove it", path);
  return JobNotice{parse_endpoint(text.substr(0, space), path),
                   Secret::from_text(text.substr(space + 1))};
}

void Bulletin::remove() const noexcept { ::unlink(path_.c_str()); }

}  // namespace paceline
