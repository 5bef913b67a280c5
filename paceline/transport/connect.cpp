#include "paceline/transport/connect.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include <poll.h>

#include "paceline/core/bytes.h"
#include "paceline/core/check.h"
#include "paceline/core/host.h"
#include "paceline/core/log.h"
#include "paceline/transport/acceptor.h"
#include "paceline/transport/addresses.h"
#include "paceline/transport/agreement.h"
#include "paceline/transport/dialer.h"
#include "paceline/transport/loopback/memory.h"
#include "paceline/transport/loopback/room.h"
#include "paceline/transport/loopback/wire.h"
#include "paceline/transport/notice.h"
#include "paceline/transport/shm/memory.h"
#include "paceline/transport/ucx/ucx.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr auto kSlice = 50ms;
// How often a rank that waits looks whether another has given up, and how long it waits for the
// reason of what it has seen itself.
constexpr auto kNoticePause = 900ms;
constexpr auto kNoticeWait = 200ms;
constexpr auto kWarnAfter = 10s;
// Who leaves the parent once it has formed this group may be seen to leave before it is seen here.
constexpr auto kLeavePatience = 3s;

class Connector {
 public:
  Connector(const ConnectOptions& options, const Secret& secret)
      : options_(options),
        secret_(secret.derive("mesh")),
        context_(fmt::format("mesh {} generation {} of {}", options.name, options.generation,
                             options.world_size)),
        deadline_(Deadline::after(options.timeout)) {}

  std::unique_ptr<Mesh> connect() {
    try {
      require_streams();
      const std::string own = listen_and_publish();
      peers_ = fetch_addresses(options_, own, deadline_,
                               [this](const std::vector<int>& missing) { look_around(missing); });
      if (in_one_process()) {
        meet_in_memory();
      } else {
        connect_sockets();
      }
    } catch (const Error& cause) {
      const Error error =
          said_by(options_.rank, fmt::format("forming group {}", options_.name), cause);
      // Before the sockets close, so that who sees that can read why.
      if (options_.give_up && error.code() != ErrorCode::kTimeout) {
        options_.give_up(encode_notice(error));
      }
      tell_connected_peers(error);
      throw error;
    }
    auto mesh =
        std::make_unique<Mesh>(options_.name, options_.rank, std::move(peers_), std::move(wire_));
    share_memory(*mesh);
    return mesh;
  }

 private:
  void require_streams() const {
    check(options_.tcp_streams >= 1 && options_.tcp_streams <= kMaxStreams,
          "rank {}: forming group {}: {} TCP streams (PACELINE_TCP_STREAMS); choose 1 to {}",
          options_.rank, options_.name, options_.tcp_streams, kMaxStreams);
  }

  // What it published.
  std::string listen_and_publish() {
    PeerAddress self;
    self.host = host_token();
    if (!options_.host.empty()) self.host += "/" + options_.host;
    self.process = process_token();
    self.host_name = host_name();
    self.cpus = allowed_cpus();
    self.members = options_.members;
    self.transport = options_.transport;
    self.tcp_streams = options_.tcp_streams;
    if (options_.encrypt) self.cipher = best_cipher();
    self.unix_name = "paceline-" + random_hex(16);
    if (options_.transport != TransportKind::kLoopback) listen(self);
    const std::string encoded = self.encode();
    options_.publish(encoded);
    return encoded;
  }

  void listen(PeerAddress& self) {
    Fd local = listen_unix(self.unix_name);
    Fd tcp = listen_tcp({options_.address, 0});
    self.tcp = {options_.address, local_port(tcp)};
    acceptor_.emplace(Acceptor::Doors{std::move(local), std::move(tcp), context_, tcp_context(),
                                      options_.encrypt},
                      secret_, options_.name);
  }

  // Ends that disagree about encryption fail as if they belonged to different groups, even if
  // somebody has changed what they said about it.
  std::string tcp_context() const { return options_.encrypt ? context_ + ", encrypted" : context_; }

  // Both ends come to the same.
  CipherKind cipher_with(int peer) const {
    return std::min(peers_[index(peer)].cipher, peers_[index(options_.rank)].cipher);
  }

  bool same_host(int peer) const {
    return peers_[index(peer)].host == peers_[index(options_.rank)].host;
  }

  bool over_unix_socket(int peer) const {
    return same_host(peer) && options_.transport != TransportKind::kTcp;
  }

  // Both ends come to the same.
  int num_channels(int peer) const {
    const bool has_streams = !over_unix_socket(peer) && options_.transport != TransportKind::kUcx;
    return kNumChannels + (has_streams ? options_.tcp_streams - 1 : 0);
  }

  // All ranks look at the same addresses, so all come to the same answer.
  bool in_one_process() const {
    const PeerAddress& self = peers_[index(options_.rank)];
    const bool all = std::all_of(peers_.begin(), peers_.end(), [&](const PeerAddress& peer) {
      return peer.host == self.host && peer.process == self.process;
    });
    check(all || options_.transport != TransportKind::kLoopback,
          "transport loopback was asked for, but the ranks of group {} are not threads of one "
          "process",
          options_.name);
    return all && (options_.transport == TransportKind::kAuto ||
                   options_.transport == TransportKind::kLoopback);
  }

  // The room is named after all that the ranks have published, which is new for each attempt.
  void meet_in_memory() {
    std::string name = context_;
    for (const PeerAddress& peer : peers_) name += " " + peer.unix_name;
    wire_ = std::make_unique<LoopbackWire>(Room::named(name, options_.world_size, secret_),
                                           options_.rank);
    acceptor_.reset();
    const auto is_missing = [&](int peer) { return !wire_->is_connected(peer); };
    for (std::string missing = missing_ranks(is_missing); !missing.empty();
         missing = missing_ranks(is_missing)) {
      wire_->wait({}, kSlice);
      require_connected_peers();
      look_around(ranks_that(is_missing));
      require_time_for(missing);
    }
  }

  void connect_sockets() {
    sockets_ = std::make_unique<SocketWire>(options_.world_size);
    meet_over_sockets();
    if (options_.transport == TransportKind::kUcx) {
      move_to_ucx();
    } else {
      wire_ = std::move(sockets_);
    }
  }

  void move_to_ucx() {
    if (options_.encrypt) {
      fail(ErrorCode::kUnsupported,
           "rank {}: transport ucx cannot encrypt; leave --encrypt (PACELINE_ENCRYPT) out, or "
           "choose transport tcp",
           options_.rank);
    }
    std::vector<int> remote;
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (!same_host(peer)) remote.push_back(peer);
    }
    try {
      // Nothing goes between hosts when there is one.
      wire_ = remote.empty() ? std::move(sockets_) : over_ucx(sockets_, remote, deadline_);
    } catch (const Error& error) {
      require_connected_peers();  // the cause may have been told already
      throw Error(error.code(), fmt::format("rank {}: forming group {}: {}", options_.rank,
                                            options_.name, error.what()));
    }
  }

  // The nearest first, so that not all ranks call the same one.
  std::vector<Callee> lower_ranks() const {
    std::vector<Callee> callees;
    for (int peer = options_.rank - 1; peer >= 0; --peer) {
      const bool is_local = over_unix_socket(peer);
      const bool agrees = options_.encrypt && !is_local;
      callees.push_back(
          {.rank = peer,
           .description = describe(peer),
           .num_channels = num_channels(peer),
           .unix_name = is_local ? peers_[index(peer)].unix_name : "",
           .tcp = peers_[index(peer)].tcp,
           .context = is_local ? context_ : tcp_context(),
           .keys = agrees ? HandshakeHalf::Keys::kAgree : HandshakeHalf::Keys::kNone});
    }
    return callees;
  }

  // Calls the lower ranks, and hears the higher ones.
  void meet_over_sockets() {
    Dialer dialer(options_.rank, lower_ranks(), secret_, options_.name);
    const auto lacks_a_channel = [&](int peer) {
      for (int channel = 0; channel < num_channels(peer); ++channel) {
        if (!sockets_->has(peer, static_cast<Channel>(channel))) return true;
      }
      return false;
    };
    int expected = 0;
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (peer != options_.rank) expected += num_channels(peer);
    }
    std::vector<pollfd> entries;
    while (expected > 0) {
      entries.clear();
      acceptor_->add_to(entries);
      dialer.add_to(entries);
      const std::size_t first_lifeline = entries.size();
      const std::vector<int> watched = add_lifelines(entries);
      ::poll(entries.data(), entries.size(), poll_limit(dialer));
      for (NewChannel& channel : acceptor_->serve(entries)) expected -= take(std::move(channel));
      for (NewChannel& channel : go_on_calling(dialer, entries)) {
        connect(std::move(channel));
        --expected;
      }
      for (std::size_t i = 0; i < watched.size(); ++i) {
        if (entries[first_lifeline + i].revents != 0) require_connected(watched[i]);
      }
      if (expected == 0) break;
      look_around(ranks_that(lacks_a_channel));
      require_time_for(missing_ranks(lacks_a_channel));
    }
  }

  int poll_limit(const Dialer& dialer) const {
    const auto limit = std::min<std::chrono::nanoseconds>(dialer.time_left(), kSlice);
    return deadline_.poll_timeout_ms(std::chrono::ceil<std::chrono::milliseconds>(limit));
  }

  std::vector<NewChannel> go_on_calling(Dialer& dialer, std::span<const pollfd> entries) {
    try {
      return dialer.serve(entries);
    } catch (const Error&) {
      require_connected_peers();  // the cause may have been told already
      require_nobody_gave_up(kNoticeWait);
      throw;
    }
  }

  // The control channels that stand, but for those that have nothing more to say.
  std::vector<int> add_lifelines(std::vector<pollfd>& entries) const {
    std::vector<int> peers;
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (peer == options_.rank || !sockets_->is_connected(peer) || left_[index(peer)]) continue;
      entries.push_back({sockets_->socket(peer, Channel::kControl), POLLIN, 0});
      peers.push_back(peer);
    }
    return peers;
  }

  void require_time_for(const std::string& missing) const {
    if (!deadline_.expired()) return;
    fail(ErrorCode::kTimeout,
         "rank {}: forming group {} took longer than {} ms; missing: {}; see their logs, and raise "
         "GroupOptions::timeout if they are only slow",
         options_.rank, options_.name, options_.timeout.count(), missing);
  }

  // 1 when a rank's channel was added, 0 when it was not expected.
  int take(NewChannel made) {
    const auto [peer, channel] = std::pair(made.peer, made.channel);
    if (peer <= options_.rank || peer >= options_.world_size || channel < 0 ||
        channel >= num_channels(peer) || sockets_->has(peer, static_cast<Channel>(channel))) {
      log::warning(
          fmt::format("group {}: a peer that claims to be rank {}, channel {}, was refused",
                      options_.name, peer, channel));
      return 0;
    }
    connect(std::move(made));
    return 1;
  }

  void connect(NewChannel made) {
    std::unique_ptr<Cipher> cipher;
    if (options_.encrypt && !over_unix_socket(made.peer)) {
      cipher = std::make_unique<Cipher>(cipher_with(made.peer), made.keys.derive(key_use_of(made)));
    }
    sockets_->connect(made.peer, static_cast<Channel>(made.channel), std::move(made.socket),
                      std::move(cipher));
  }

  // Part of its keys: who changes on its way what a connection is for gets none of it to work.
  std::string key_use_of(const NewChannel& made) const {
    return fmt::format("rank {} channel {}", std::max(options_.rank, made.peer), made.channel);
  }

  void require_connected_peers() {
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (peer != options_.rank && wire().is_connected(peer)) require_connected(peer);
    }
  }

  // Looks without reading: what comes after the group has formed is the mesh's.
  void require_connected(int peer) {
    std::array<char, kMaxNoticeBytes> buffer;
    const ssize_t got =
        wire().peek(peer, Channel::kControl, std::as_writable_bytes(std::span(buffer)));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      require_nobody_gave_up(kNoticeWait);  // it may have, before it could tell this rank itself
      fail(ErrorCode::kPeerLost, "rank {}: {} died while group {} formed", options_.rank,
           describe(peer), options_.name);
    }
    const auto notice = decode_notice(std::span(buffer).first(static_cast<std::size_t>(got)));
    left_[index(peer)] = notice && notice->goodbye;
    if (left_[index(peer)]) return;
    throw Error(
        code_after(notice),
        fmt::format("rank {}: {} gave up while group {} formed: {}", options_.rank, describe(peer),
                    options_.name, notice ? notice->text : "(its notice cannot be read)"));
  }

  void look_around(const std::vector<int>& missing) {
    look_for_notice();
    look_after_parent(missing);
    warn_of_slow_forming(missing);
  }

  // A rank that gave up before it came to this one cannot tell it otherwise.
  void look_for_notice() {
    if (!next_look_.expired()) return;
    next_look_ = Deadline::after(kNoticePause);
    require_nobody_gave_up(0ms);
  }

  void look_after_parent(const std::vector<int>& missing) {
    if (!options_.look_after_parent) return;
    for (const int rank : options_.look_after_parent()) {
      if (std::find(missing.begin(), missing.end(), rank) == missing.end()) continue;
      const auto seen = left_parent_.try_emplace(rank, Deadline::after(kLeavePatience)).first;
      if (!seen->second.expired()) continue;
      fail(ErrorCode::kPeerLost,
           "rank {}: {} has left the group that group {} is made of, before {} had formed; see its "
           "log",
           options_.rank, name_in_world(rank), options_.name, options_.name);
    }
  }

  void warn_of_slow_forming(const std::vector<int>& missing) {
    if (has_warned_ || !warn_at_.expired()) return;
    has_warned_ = true;
    std::string names;
    for (const int rank : missing) names += (names.empty() ? "" : ", ") + name_in_world(rank);
    log::warning(fmt::format("forming group {} waits since {} s: {} has not come", options_.name,
                             std::chrono::seconds(kWarnAfter).count(), names));
  }

  // Before its address is known, too.
  std::string name_in_world(int rank) const {
    const int in_world =
        options_.members.empty() ? rank : options_.members[static_cast<std::size_t>(rank)];
    return in_world == rank ? fmt::format("rank {}", rank)
                            : fmt::format("rank {} (rank {} of the world)", rank, in_world);
  }

  void require_nobody_gave_up(std::chrono::milliseconds wait) const {
    const std::string text = options_.given_up ? options_.given_up(wait) : std::string();
    const auto notice = decode_notice(text);
    if (!notice || notice->goodbye) return;
    throw Error(code_after(notice), fmt::format("rank {}: group {} did not form: {}", options_.rank,
                                                options_.name, notice->text));
  }

  static ErrorCode code_after(const std::optional<Notice>& notice) {
    return notice && notice->code == ErrorCode::kPeerLost ? ErrorCode::kPeerLost
                                                          : ErrorCode::kAborted;
  }

  void tell_connected_peers(const Error& error) const {
    if (!wire_ && !sockets_) return;
    const std::string notice = encode_notice(error);
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (peer == options_.rank || !wire().is_connected(peer)) continue;
      wire().send(peer, Channel::kControl, as_bytes(notice), {});
    }
  }

  std::string describe(int peer) const { return describe_rank(peer, peers_[index(peer)]); }

  std::vector<int> ranks_that(const std::function<bool(int peer)>& is_missing) const {
    std::vector<int> ranks;
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (peer != options_.rank && is_missing(peer)) ranks.push_back(peer);
    }
    return ranks;
  }

  std::string missing_ranks(const std::function<bool(int peer)>& is_missing) const {
    std::string names;
    for (const int peer : ranks_that(is_missing)) {
      names += (names.empty() ? "" : ", ") + describe(peer);
    }
    return names;
  }

  // All ranks of a host look at the same addresses, so all come to the same choice.
  void share_memory(Mesh& mesh) const {
    const auto& local = mesh.neighbours();
    const bool one_host = local.size() == static_cast<std::size_t>(mesh.world_size());
    const bool one_process = std::all_of(local.begin(), local.end(), [&](int peer) {
      return mesh.peer(peer).process == mesh.peer(mesh.rank()).process;
    });
    const auto kind = options_.transport;
    check(kind != TransportKind::kShm || one_host,
          "rank {}: transport shm was asked for, but the ranks of group {} are on several hosts",
          options_.rank, options_.name);
    if (local.size() == 1 || kind == TransportKind::kTcp) return;
    if (one_process && kind != TransportKind::kShm) {
      mesh.set_shared_memory(std::make_unique<LoopbackMemory>(mesh));
    } else {
      mesh.set_shared_memory(std::make_unique<ShmMemory>(mesh));
    }
  }

  Wire& wire() const { return wire_ ? *wire_ : *sockets_; }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  const ConnectOptions& options_;
  const Secret secret_;
  const std::string context_;
  const Deadline deadline_;
  Deadline next_look_ = Deadline::after(kNoticePause);
  const Deadline warn_at_ = Deadline::after(kWarnAfter);
  bool has_warned_ = false;
  std::map<int, Deadline> left_parent_;  // by when they must have been seen here
  std::optional<Acceptor> acceptor_;
  std::vector<PeerAddress> peers_;
  std::vector<bool> left_ = std::vector<bool>(static_cast<std::size_t>(options_.world_size));
  std::unique_ptr<SocketWire> sockets_;  // until they are the wire or part of it
  std::unique_ptr<Wire> wire_;
};

}  // namespace

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

std::unique_ptr<Mesh> connect_mesh(const ConnectOptions& options, const Secret& secret) {
  return Connector(options, secret).connect();
}

}  // namespace paceline
