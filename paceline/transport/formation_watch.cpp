#include "paceline/transport/formation_watch.h"

#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "paceline/core/bytes.h"
#include "paceline/core/check.h"
#include "paceline/transport/notice.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr auto kNoticePause = 1s;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

ErrorCode code_after(const std::optional<Notice>& notice) {
  return notice && notice->code == ErrorCode::kPeerLost ? ErrorCode::kPeerLost
                                                        : ErrorCode::kAborted;
}

}  // namespace

FormationWatch::FormationWatch(const ConnectOptions& options,
                               std::function<std::string(int peer)> describe)
    : options_(options),
      describe_(std::move(describe)),
      left_(index(options.world_size)),
      next_look_(Deadline::after(kNoticePause)) {}

void FormationWatch::give_up(Wire* wire, const Error& error) const {
  const std::string notice = encode_notice(error);
  if (options_.give_up && error.code() != ErrorCode::kTimeout) options_.give_up(notice);
  for (int peer = 0; wire != nullptr && peer < options_.world_size; ++peer) {
    if (peer == options_.rank || !wire->is_connected(peer)) continue;
    wire->send(peer, Channel::kControl, as_bytes(notice), {});
  }
}

void FormationWatch::require_nobody_gave_up(std::chrono::milliseconds wait) const {
  const std::string text = options_.given_up ? options_.given_up(wait) : std::string();
  const auto notice = decode_notice(text);
  if (!notice || notice->goodbye) return;
  throw Error(code_after(notice), fmt::format("rank {}: group {} did not form: {}", options_.rank,
                                              options_.name, notice->text));
}

// A rank that gave up before it came to this one cannot tell it otherwise.
void FormationWatch::look() {
  if (!next_look_.expired()) return;
  next_look_ = Deadline::after(kNoticePause);
  require_nobody_gave_up(0ms);
}

void FormationWatch::require_connected(Wire& wire, int peer) {
  std::array<char, kMaxNoticeBytes> buffer;
  const ssize_t got = wire.peek(peer, Channel::kControl, std::as_writable_bytes(std::span(buffer)));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    require_nobody_gave_up(kNoticeWait);  // it may have, before it could tell this rank itself
    fail(ErrorCode::kPeerLost, "rank {}: {} died while group {} formed", options_.rank,
         describe_(peer), options_.name);
  }
  const auto notice = decode_notice(std::span(buffer).first(static_cast<std::size_t>(got)));
  left_[index(peer)] = notice && notice->goodbye;
  if (left_[index(peer)]) return;
  throw Error(
      code_after(notice),
      fmt::format("rank {}: {} gave up while group {} formed: {}", options_.rank, describe_(peer),
                  options_.name, notice ? notice->text : "(its notice cannot be read)"));
}

void FormationWatch::require_connected_peers(Wire& wire) {
  for (int peer = 0; peer < options_.world_size; ++peer) {
    if (peer != options_.rank && wire.is_connected(peer)) require_connected(wire, peer);
  }
}

std::vector<int> FormationWatch::add_lifelines(const SocketWire& sockets,
                                               std::vector<pollfd>& entries) const {
  std::vector<int> peers;
  for (int peer = 0; peer < options_.world_size; ++peer) {
    if (peer == options_.rank || !sockets.is_connected(peer) || left_[index(peer)]) continue;
    entries.push_back({sockets.socket(peer, Channel::kControl), POLLIN, 0});
    peers.push_back(peer);
  }
  return peers;
}

}  // namespace paceline
