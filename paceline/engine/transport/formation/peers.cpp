#include "paceline/engine/transport/formation/peers.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/transport/control_messages.h"
#include "paceline/engine/transport/wire.h"

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

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kPause = 1s;
// A little shorter than kPause, so that it has passed after one pause.
constexpr std::chrono::nanoseconds kReadingPause = 900ms;
// How soon the parent group is first checked, and how often afterwards. Large groups check less
// often, because they send longer requests to the store.
constexpr std::chrono::nanoseconds kFirstLook = 10ms;
constexpr std::chrono::nanoseconds kLookPause = 100ms;
constexpr std::chrono::nanoseconds kLookPauseByRank = 2ms;
// About how many bytes of addresses one call asks for; a store's reply has a limit.
constexpr std::size_t kBytesAtOnce = 4 << 20;

class Fetcher {
 public:
  Fetcher(const ConnectOptions& options, const std::string& own, Deadline deadline,
          const LookAround& look_around)
      : options_(options),
        num_at_once_(std::max<std::size_t>(kBytesAtOnce / own.size(), 1)),
        deadline_(deadline),
        look_around_(look_around) {}

  std::vector<PeerAddress> run() {
    const auto count = static_cast<std::size_t>(options_.world_size);
    std::vector<int> ranks(count);
    std::iota(ranks.begin(), ranks.end(), 0);
    peers_.resize(count);
    for (std::span<const int> left = ranks; !left.empty();) {
      const auto some = left.first(std::min(left.size(), num_at_once_));
      fetch_all({some.begin(), some.end()});
      left = left.subspan(some.size());
    }
    return std::move(peers_);
  }

 private:
  // Waits in short slices, because a rank that gave up early never publishes an address.
  void fetch_all(std::vector<int> missing) {
    auto next_reading = Deadline::after(kReadingPause);
    std::chrono::nanoseconds slice = options_.look_after_parent ? kFirstLook : kPause;
    while (!take(missing, std::min(put_off(deadline_).remaining(), slice))) {
      if (next_reading.expired() || put_off(deadline_).expired()) {
        // The addresses published so far may explain why the other ranks are missing.
        std::erase_if(missing, [&](int rank) { return take({rank}, 0ns); });
        if (missing.empty()) return;
        next_reading = Deadline::after(kReadingPause);
      }
      look_around_(missing);
      if (put_off(deadline_).expired()) {
        fail(ErrorCode::kTimeout,
             {.ranks = options_.in_world(missing), .deadline = options_.timeout},
             "{}: rank {} of group {} did not arrive within {} ms", options_.self(),
             missing.front(), options_.name, options_.timeout.count());
      }
      slice = std::min(
          {2 * slice, std::max(kLookPause, kLookPauseByRank * options_.world_size), kPause});
      if (!options_.look_after_parent) slice = kPause;
    }
  }

  // Fetches the addresses of `ranks`; false if some did not arrive within `wait`.
  bool take(const std::vector<int>& ranks, std::chrono::nanoseconds wait) {
    std::vector<std::string> values;
    try {
      values = options_.fetch(ranks, std::chrono::ceil<std::chrono::milliseconds>(wait));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kTimeout) return false;
      throw error.reworded(fmt::format("{}: the addresses of group {} did not arrive: {}",
                                       options_.self(), options_.name, error.what()));
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) take(ranks[i], values.at(i));
    return true;
  }

  void take(int rank, const std::string& value) {
    PeerAddress& peer = peers_[static_cast<std::size_t>(rank)];
    peer = PeerAddress::decode(value);
    require_agreement(options_, rank, peer);
    peer.members = {};  // drop the list, which would take memory quadratic in the number of ranks
  }

  const ConnectOptions& options_;
  const std::size_t num_at_once_;
  const Deadline deadline_;
  const LookAround& look_around_;
  std::vector<PeerAddress> peers_;
};

}  // namespace

std::vector<PeerAddress> fetch_addresses(const ConnectOptions& options, const std::string& own,
                                         Deadline deadline, const LookAround& look_around) {
  return Fetcher(options, own, deadline, look_around).run();
}

namespace {

using namespace std::chrono_literals;

constexpr auto kNoticePause = 900ms;
constexpr auto kLongestNotice = 1s;
constexpr auto kWarnAfter = 10s;
// A peer may connect and then leave the parent group, and this rank may notice the departure first.
// So this rank waits this long for the connection.
constexpr auto kLeavePatience = 3s;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

ErrorCode code_after(const std::optional<Notice>& notice) {
  return notice && notice->code == ErrorCode::kPeerLost ? ErrorCode::kPeerLost
                                                        : ErrorCode::kAborted;
}

// Like Wire::peek(), but waits for the rest of a notice that has arrived in part. Returns 0 if the
// rest does not follow within a second, because the sender has died.
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
  throw Error(
      code_after(notice),
      fmt::format("{}: group {} did not form: {}", options_.self(), options_.name, notice->text),
      {.ranks = notice->ranks});
}

void FormationWatch::look(const std::vector<int>& missing) {
  WaitCheck::run();
  // A rank that gave up before it connected to this rank can inform it only by a published notice.
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
    fail(ErrorCode::kPeerLost, {.ranks = {options_.in_world(rank)}},
         "{}: {} has left the parent of group {} before group {} had formed; see the log of "
         "that rank",
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
  std::array<char, 4 * kMaxNoticeBytes> buffer;  // has room for a notice behind other messages
  const ssize_t got = peek_notice(wire, peer, buffer);
  if (got < 0 && would_block(errno)) return;
  if (got <= 0) {
    // The peer may have given up before it could tell this rank.
    require_nobody_gave_up(kNoticeWait);
    fail(ErrorCode::kPeerLost, {.ranks = {options_.in_world(peer)}},
         "{}: {} died while group {} formed", options_.self(), describe_(peer), options_.name);
  }
  // A peer that has formed the group may already send questions, answers and reasons, which this
  // rank's mesh will read.
  const std::string bytes =
      Inquiry(options_.world_size).take(peer, {buffer.data(), static_cast<std::size_t>(got)});
  if (bytes.empty()) return;
  const auto notice = decode_notice(bytes);
  left_[index(peer)] = notice && notice->goodbye;
  if (left_[index(peer)]) return;
  throw Error(
      code_after(notice),
      fmt::format("{}: {} gave up while group {} formed: {}", options_.self(), describe_(peer),
                  options_.name, notice ? notice->text : "(its notice cannot be read)"),
      {.ranks = notice && !notice->ranks.empty() ? notice->ranks
                                                 : std::vector{options_.in_world(peer)}});
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
