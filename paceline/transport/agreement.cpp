#include "paceline/transport/agreement.h"

#include <fmt/ranges.h>

#include "paceline/core/check.h"

namespace paceline {

std::string describe_rank(int rank, const PeerAddress& address) {
  return fmt::format("rank {} ({})", rank, address.host_name);
}

void require_agreement(const ConnectOptions& mine, int peer, const PeerAddress& theirs) {
  const std::string who = describe_rank(peer, theirs);
  check(theirs.members == mine.members,
        "rank {}: group {} does not match: this rank means the ranks {} of the world, {} means {}; "
        "all ranks must make the same groups in the same order",
        mine.rank, mine.name, fmt::join(mine.members, ", "), who, fmt::join(theirs.members, ", "));
  check(theirs.transport == mine.transport,
        "rank {}: {} of group {} chose transport {}, but this rank {}; give all ranks the same "
        "PACELINE_TRANSPORT",
        mine.rank, who, mine.name, name_of(theirs.transport), name_of(mine.transport));
  const bool encrypts = theirs.cipher != CipherKind::kNone;
  check(encrypts == mine.encrypt,
        "rank {}: {} of group {} {}, but this rank {}; give all ranks --encrypt "
        "(PACELINE_ENCRYPT=1), or none",
        mine.rank, who, mine.name, encrypts ? "encrypts" : "does not encrypt",
        mine.encrypt ? "does" : "does not");
  check(theirs.tcp_streams == mine.tcp_streams,
        "rank {}: {} of group {} has {} TCP streams for each peer, but this rank {}; give all "
        "ranks the same PACELINE_TCP_STREAMS",
        mine.rank, who, mine.name, theirs.tcp_streams, mine.tcp_streams);
}

}  // namespace paceline
