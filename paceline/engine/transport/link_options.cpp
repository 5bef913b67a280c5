#include <cstddef>

#include "paceline/engine/core/check.h"
#include "paceline/engine/transport/transport_name.h"

namespace paceline {

TransportKind parse_transport(const std::string& name) {
  if (name == "auto") return TransportKind::kAuto;
  if (name == "tcp") return TransportKind::kTcp;
  if (name == "shm") return TransportKind::kShm;
  if (name == "loopback") return TransportKind::kLoopback;
  if (name == "ucx") return TransportKind::kUcx;
  fail(ErrorCode::kInvalid,
       "transport '{}' is unknown; choose auto, shm, tcp, loopback or ucx "
       "(--transport, PACELINE_TRANSPORT)",
       name);
}

std::string_view name_of(TransportKind transport) {
  constexpr std::string_view kNames[] = {"auto", "tcp", "shm", "loopback", "ucx"};
  return kNames[static_cast<std::size_t>(transport)];
}

}  // namespace paceline
