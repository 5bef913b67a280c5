#pragma once

// What a launcher tells its end on another host: everything that `paceline run` there needs. It
// travels through the connection's stdin, so that neither the secret nor a variable nor an argument
// of the program passes through a shell or shows in a list of processes. Values.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/core/socket.h"

namespace paceline::launch {

// Where the job meets, on host 0. 0: one that host 0 picks.
struct JobPorts {
  std::uint16_t store = 0;  // of Paceline's store
  std::uint16_t ranks = 0;  // MASTER_PORT: of a store that rank 0 may bring
  bool operator==(const JobPorts&) const = default;
};

// One host's part in a job that a launcher somewhere else started.
struct HostPart {
  std::string host;                 // as the launcher calls it; before the rank in "[a:3] "
  std::string secret;               // of the job, as text; empty when it has one host
  std::uint16_t rank_port = 0;      // JobPorts::ranks
  std::vector<int> ranks_per_host;  // in the order of hosts
  // The hosts' agents meet at the first one's JobPorts::store and see to failures themselves.
  bool goes_on = false;
  std::optional<Endpoint> meeting;  // where the agents meet by now; nothing: there
  int notices_fd = -1;              // frames with the launcher's own words go there
};

struct RemoteJob {
  std::vector<std::string> arguments;              // of paceline run: options, "--", the program
  std::string directory;                           // where to start
  std::map<std::string, std::string> environment;  // to be set there
  std::string host, secret;                        // as in HostPart
  std::vector<int> ranks_per_host;
  JobPorts ports;
  bool goes_on = false;  // as in HostPart
  std::optional<Endpoint> meeting;
  bool operator==(const RemoteJob&) const = default;
};

std::string encode(const JobPorts& ports);
std::string encode(const RemoteJob& job);
// Error(kCorrupt) when the bytes are not such a value.
JobPorts decode_ports(const std::string& bytes);
RemoteJob decode_job(const std::string& bytes);

}  // namespace paceline::launch
