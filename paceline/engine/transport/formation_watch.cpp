#include "paceline/engine/transport/formation_watch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/vigil.h"
#include "paceline/engine/transport/message.h"
#include "paceline/engine/transport/notice.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr auto kNoticePause = 900ms;
constexpr auto kLongestNotice = 1s;
constexpr auto kWarnAfter = 10s;
// A rank that leaves the parent once it has formed this group may be seen to leave before it is
// seen here.
constexpr auto kLeavePatience = 3s;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

ErrorCode code_after(const std::optional<Notice>& notice) {
  return notice && notice->code == ErrorCode::kPeerLost ? ErrorCode::kPeerLost
                                                        : ErrorCode::kAborted;
}

// As Wire::peek(). Behind the beginning of a notice the rest follows at once, unless its sender has
// died.
ssize_t peek_notice(Wire& wire, int peer, std::span<char> into) {
  const auto deadline = Deadline::after(kLongestNotice);
  for (;;) {
    const ssize_t got = wire.peek(peer, Channel::kControl, std::as_writable_bytes(into));
    if (got <= 0 || is_whole_notice(into.first(static_cast<std::size_t>(got)))) return got;
    if (deadline.expired()) return 0;
    wire.wait({}, 1ms);
  }
}

}  // namespace

FormationWatch::FormationWatch(const ConnectOptions& options,
                               std::function<std::string(int peer)> describe)
    : options_(options),
      describe_(std::move(describe)),
      left_(index(options.world_size)),
      next_look_(Deadline::after(kNoticePause)),
      warn_at_(Deadline::after(kWarnAfter)) {}

void FormationWatch::give_up(Wire* wire, const Error& error) const {
  const std::string notice = encode_notice(error);
  if (options_.give_up && error.code() != ErrorCode::kTimeout) options_.give_up(notice);
  const auto deadline = Deadline::after(kLongestNotice);
  for (int peer = 0; wire != nullptr && peer < options_.world_size; ++peer) {
    if (peer == options_.rank || !wire->is_connected(peer)) continue;
    send_whole(*wire, peer, Channel::kControl, as_bytes(notice), deadline);
  }
}

void FormationWatch::require_nobody_gave_up(std::chrono::milliseconds wait) const {
  const std::string text = options_.given_up ? options_.given_up(wait) : std::string();
  const auto notice = decode_notice(text);
  if (!notice || notice->goodbye) return;
  throw Error(code_after(notice), fmt::format("{}: group {} did not form: {}", options_.self(),
                                              options_.name, notice->text));
}

void FormationWatch::look(const std::vector<int>& missing) {
  // A rank that gave up before it came to this one cannot tell it otherwise.
  if (next_look_.expired()) {
    next_look_ = Deadline::after(kNoticePause);
    require_nobody_gave_up(0ms);
  }
  look_after_parent(missing);
  warn_of_slow_forming(missing);
}

void FormationWatch::look_after_parent(const std::vector<int>& missing) {
  if (!options_.look_after_parent) return;
  for (const int rank : options_.look_after_parent()) {
    if (std::find(missing.begin(), missing.end(), rank) == missing.end()) continue;
    const auto seen = left_parent_.try_emplace(rank, Deadline::after(kLeavePatience)).first;
    if (!put_off(seen->second).expired()) continue;
    fail(ErrorCode::kPeerLost,
         "{}: {} has left the group that group {} is made of, before {} had formed; see its "
         "log",
         options_.self(), options_.name_of(rank), options_.name, options_.name);
  }
}

void FormationWatch::warn_of_slow_forming(const std::vector<int>& missing) {
  if (has_warned_ || !put_off(warn_at_).expired()) return;
  has_warned_ = true;
  std::string names;
  for (const int rank : missing) names += (names.empty() ? "" : ", ") + options_.name_of(rank);
  log::warning(fmt::format("forming group {} has been waiting for {} s: {} has not arrived",
                           options_.name, std::chrono::seconds(kWarnAfter).count(), names));
}

void FormationWatch::require_connected(Wire& wire, int peer) {
  std::array<char, kMaxNoticeBytes> buffer;
  const ssize_t got = peek_notice(wire, peer, buffer);
  if (got < 0 && would_block(errno)) return;
  if (got <= 0) {
    require_nobody_gave_up(kNoticeWait);  // it may have, before it could tell this rank itself
    fail(ErrorCode::kPeerLost, "{}: {} died while group {} formed", options_.self(),
         describe_(peer), options_.name);
  }
  const auto notice = decode_notice(std::span(buffer).first(static_cast<std::size_t>(got)));
  left_[index(peer)] = notice && notice->goodbye;
  if (left_[index(peer)]) return;
  throw Error(
      code_after(notice),
      fmt::format("{}: {} gave up while group {} formed: {}", options_.self(), describe_(peer),
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
