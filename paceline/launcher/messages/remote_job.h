#pragma once

// What a launcher tells its end on another host: everything that `paceline run` there needs. It
// travels through the connection's stdin, so that neither the secret nor a variable nor an argument
// of the program passes through a shell or shows in a list of processes. Values.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/socket.h"

namespace paceline::launcher {

// One host's part in a job that a launcher somewhere else started.
struct HostPart {
  std::string host;                 // as the launcher calls it; before the rank in "[a:3] "
  std::string secret;               // of the job, as text
  std::vector<int> ranks_per_host;  // in the order of hosts
  // Of a job that has begun: where its agents meet by now. Nothing: at the first host.
  std::optional<Endpoint> meeting;
  bool operator==(const HostPart&) const = default;
};

struct RemoteJob {
  std::vector<std::string> arguments;              // of paceline run: options, "--", the program
  std::string directory;                           // where to start
  std::map<std::string, std::string> environment;  // to be set there
  HostPart part;
  std::uint16_t port = 0;  // where the agents meet at the first host; 0: one that it picks
  bool operator==(const RemoteJob&) const = default;
};

std::string encode(const RemoteJob& job);
// Error(kCorrupt) when the bytes are not such a value.
RemoteJob decode_job(const std::string& bytes);

}  // namespace paceline::launcher
