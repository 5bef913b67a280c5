#include "paceline/rendezvous/meeting_point.h"

#include "paceline/core/check.h"
#include "paceline/rendezvous/variables.h"

namespace paceline {
namespace {

constexpr int kGreatestPort = 65535;

bool all_local(const LaunchEnvironment& who) { return who.local_world_size == who.world_size; }

// Under torchrun MASTER_PORT belongs to its own store, the next port is ours.
std::uint16_t store_port(const GetVariable& variable) {
  if (const auto port = read_number(variable, "PACELINE_STORE_PORT", kGreatestPort)) {
    return static_cast<std::uint16_t>(*port);
  }
  const auto port = read_number(variable, "MASTER_PORT", kGreatestPort);
  check(port && *port > 0,
        "MASTER_PORT is not set (or 0): name the port of rank 0's store, for "
        "example MASTER_PORT=29500");
  const bool taken = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  check(!taken || *port < kGreatestPort, "MASTER_PORT={} leaves no port above it", *port);
  return static_cast<std::uint16_t>(*port + (taken ? 1 : 0));
}

MeetingPoint notice_for(const std::string& job, const LaunchEnvironment& who) {
  return {.kind = MeetingPoint::Kind::kNotice,
          .job = fmt::format("{}-{}-{}", who.launcher, job, who.restart_count)};
}

std::string how_to_say_where(const LaunchEnvironment& who) {
  const std::string values = "MASTER_ADDR=FIRST_HOST MASTER_PORT=29500";
  if (who.launcher == "openmpi") {
    return "mpirun -x MASTER_ADDR=FIRST_HOST -x MASTER_PORT=29500 " + own_command();
  }
  if (who.launcher == "slurm") {
    return "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_STEP_NODELIST\" | head -n 1) "
           "MASTER_PORT=29500 srun " +
           own_command();
  }
  return values + " " + own_command();
}

MeetingPoint from_environment(const LaunchEnvironment& who, const GetVariable& variable) {
  if (const auto store = variable("PACELINE_STORE")) {
    return {.kind = MeetingPoint::Kind::kLauncher,
            .endpoint = parse_endpoint(*store, "PACELINE_STORE")};
  }
  const auto address = variable("MASTER_ADDR");
  const bool has_address = address && !address->empty();
  if (who.launcher == "torchrun" && all_local(who) && has_address) {
    return notice_for(*address + "-" + std::to_string(store_port(variable)), who);
  }
  if (has_address) {
    return {.kind = MeetingPoint::Kind::kRankZero, .endpoint = {*address, store_port(variable)}};
  }
  if (all_local(who) && !who.job_id.empty()) return notice_for(who.job_id, who);
  fail(ErrorCode::kInvalid,
       "MASTER_ADDR is not set: rank {} of {} ({}) does not know where the others are. Say where "
       "rank "
       "0 hosts the store: {}",
       who.rank, who.world_size, who.launcher, how_to_say_where(who));
}

}  // namespace

MeetingPoint find_meeting_point(const std::string& init_method, const LaunchEnvironment& who,
                                const GetVariable& variable) {
  if (init_method == "env://") return from_environment(who, variable);
  if (init_method.starts_with("tcp://")) {
    const auto endpoint = parse_endpoint(init_method.substr(6), "init_method " + init_method);
    check(endpoint.port != 0, "init_method {}: the port must be above 0", init_method);
    return {.kind = MeetingPoint::Kind::kRankZero, .endpoint = endpoint};
  }
  if (init_method.starts_with("file:///")) {
    return {.kind = MeetingPoint::Kind::kFile, .path = init_method.substr(7)};
  }
  fail(ErrorCode::kInvalid, "init_method '{}' is none of env://, tcp://HOST:PORT, file:///PATH",
       init_method);
}

}  // namespace paceline
