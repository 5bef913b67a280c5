#include "paceline/engine/transport/agreement.h"

#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/rank_name.h"

namespace paceline {

void require_agreement(const ConnectOptions& mine, int peer, const PeerAddress& theirs) {
  const std::string who = rank_name(peer, mine.in_world(peer), theirs.host_name);
  check(theirs.members == mine.members,
        "{}: group {} does not match: this rank means the ranks {} of the world, {} means {}; "
        "all ranks must make the same groups in the same order",
        mine.self(), mine.name, fmt::join(mine.members, ", "), who,
        fmt::join(theirs.members, ", "));
  check(theirs.transport == mine.link.transport,
        "{}: {} of group {} chose transport {}, but this rank {}; give all ranks the same "
        "PACELINE_TRANSPORT",
        mine.self(), who, mine.name, name_of(theirs.transport), name_of(mine.link.transport));
  const bool encrypts = theirs.cipher != CipherKind::kNone;
  check(encrypts == mine.link.encrypt,
        "{}: {} of group {} {}, but this rank {}; give all ranks --encrypt "
        "(PACELINE_ENCRYPT=1), or none",
        mine.self(), who, mine.name, encrypts ? "encrypts" : "does not encrypt",
        mine.link.encrypt ? "does" : "does not");
  check(theirs.tcp_streams == mine.link.tcp_streams,
        "{}: {} of group {} has {} TCP streams for each peer, but this rank {}; give all "
        "ranks the same PACELINE_TCP_STREAMS",
        mine.self(), who, mine.name, theirs.tcp_streams, mine.link.tcp_streams);
}

}  // namespace paceline
