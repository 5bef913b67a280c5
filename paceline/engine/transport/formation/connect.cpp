#include "paceline/engine/transport/formation/connect.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <poll.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/transport/formation/acceptor.h"
#include "paceline/engine/transport/formation/dialer.h"
#include "paceline/engine/transport/formation/peers.h"
#include "paceline/engine/transport/host_memory.h"
#include "paceline/engine/transport/loopback_wire.h"
#include "paceline/engine/transport/ucx/ucx.h"

namespace paceline {

namespace {

using namespace std::chrono_literals;

constexpr auto kSlice = 50ms;

class Connector {
 public:
  Connector(const ConnectOptions& options, const Secret& secret)
      : options_(options),
        secret_(secret.derive("mesh")),
        context_(fmt::format("mesh {} generation {} of {}", options.name, options.generation,
                             options.world_size)),
        deadline_(Deadline::after(options.timeout)),
        watch_(options, describer()) {}

  std::unique_ptr<Mesh> connect() {
    try {
      require_streams();
      const std::string own = listen_and_publish();
      peers_ = fetch_addresses(options_, own, deadline_,
                               [this](const auto& missing) { watch_.look(missing); });
      if (in_one_process()) {
        meet_in_memory();
      } else {
        connect_sockets();
      }
    } catch (const Error& cause) {
      const std::string operation = "forming group " + options_.name;
      const Error error = reported_by(options_.self(), operation, cause)
                              .with({.operation = operation, .group = options_.name});
      watch_.give_up(wire(), error);
      throw error;
    }
    auto mesh = std::make_unique<Mesh>(options_.name, options_.rank, std::move(peers_),
                                       std::move(wire_), options_.members);
    share_memory(*mesh);
    return mesh;
  }

 private:
  void require_streams() const {
    check(options_.link.tcp_streams >= 1 && options_.link.tcp_streams <= kMaxStreams,
          "{}: forming group {}: {} TCP streams (PACELINE_TCP_STREAMS); choose 1 to {}",
          options_.self(), options_.name, options_.link.tcp_streams, kMaxStreams);
  }

  // Returns the published address.
  std::string listen_and_publish() {
    PeerAddress self;
    self.host = host_token();
    if (!options_.link.host.empty()) self.host += "/" + options_.link.host;
    self.process = process_token();
    self.host_name = host_name();
    self.cpus = allowed_cpus();
    self.members = options_.members;
    self.transport = options_.link.transport;
    self.tcp_streams = options_.link.tcp_streams;
    if (options_.link.encrypt) self.cipher = best_cipher();
    self.unix_name = "paceline-" + random_hex(16);
    if (options_.link.transport != TransportKind::kLoopback) listen(self);
    std::string encoded = self.encode();
    options_.publish(encoded);
    return encoded;
  }

  void listen(PeerAddress& self) {
    Fd local = listen_unix(self.unix_name);
    Fd tcp = listen_tcp({options_.address, 0});
    self.tcp = {options_.address, local_port(tcp)};
    acceptor_.emplace(Acceptor::Doors{std::move(local), std::move(tcp), context_, tcp_context(),
                                      options_.link.encrypt},
                      secret_, options_.name);
  }

  // Ends that disagree about encryption fail as if they belonged to different groups, even if
  // another process has changed their published choices.
  std::string tcp_context() const {
    return options_.link.encrypt ? context_ + ", encrypted" : context_;
  }

  // Both ends compute the same result.
  CipherKind cipher_with(int peer) const {
    return std::min(peers_[index(peer)].cipher, peers_[index(options_.rank)].cipher);
  }

  bool same_host(int peer) const {
    return peers_[index(peer)].host == peers_[index(options_.rank)].host;
  }

  bool over_unix_socket(int peer) const {
    return same_host(peer) && options_.link.transport != TransportKind::kTcp;
  }

  // Both ends compute the same result.
  int num_channels(int peer) const {
    const bool has_streams =
        !over_unix_socket(peer) && options_.link.transport != TransportKind::kUcx;
    return kNumChannels + (has_streams ? options_.link.tcp_streams - 1 : 0);
  }

  // All ranks compare the same addresses, so all get the same answer.
  bool in_one_process() const {
    const PeerAddress& self = peers_[index(options_.rank)];
    const bool all = std::all_of(peers_.begin(), peers_.end(), [&](const PeerAddress& peer) {
      return peer.host == self.host && peer.process == self.process;
    });
    check(all || options_.link.transport != TransportKind::kLoopback,
          "transport loopback was asked for, but the ranks of group {} are not threads of one "
          "process",
          options_.name);
    return all && (options_.link.transport == TransportKind::kAuto ||
                   options_.link.transport == TransportKind::kLoopback);
  }

  // The room's name contains the socket names that all ranks have published, which are new for each
  // attempt.
  void meet_in_memory() {
    std::string name = context_;
    for (const PeerAddress& peer : peers_) name += " " + peer.unix_name;
    wire_ = std::make_unique<LoopbackWire>(Room::named(name, options_.world_size, secret_),
                                           options_.rank);
    acceptor_.reset();
    const auto is_missing = [&](int peer) { return !wire_->is_connected(peer); };
    for (auto missing = ranks_that(is_missing); !missing.empty();
         missing = ranks_that(is_missing)) {
      wire_->wait({}, kSlice);
      watch_.require_connected_peers(*wire_);
      watch_.look(missing);
      require_time_for(missing);
    }
  }

  void connect_sockets() {
    sockets_ = std::make_unique<SocketWire>(options_.world_size);
    meet_over_sockets();
    if (options_.link.transport == TransportKind::kUcx) {
      move_to_ucx();
    } else {
      wire_ = std::move(sockets_);
    }
  }

  void move_to_ucx() {
    if (options_.link.encrypt) {
      fail(ErrorCode::kUnsupported,
           "{}: transport ucx cannot encrypt; leave --encrypt (PACELINE_ENCRYPT) out, or "
           "choose transport tcp",
           options_.self());
    }
    std::vector<int> remote;
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (!same_host(peer)) remote.push_back(peer);
    }
    try {
      // If all ranks are on one host, UCX has nothing to carry.
      wire_ =
          remote.empty() ? std::move(sockets_) : over_ucx(sockets_, remote, describer(), deadline_);
    } catch (const Error& error) {
      watch_.require_connected_peers(*wire());  // a peer may already have sent the cause
      throw error.reworded(
          fmt::format("{}: forming group {}: {}", options_.self(), options_.name, error.what()));
    }
  }

  // The lower ranks, nearest first, so that not all ranks call the same rank at first.
  std::vector<Callee> lower_ranks() const {
    std::vector<Callee> callees;
    for (int peer = options_.rank - 1; peer >= 0; --peer) {
      const bool is_local = over_unix_socket(peer);
      const bool agrees = options_.link.encrypt && !is_local;
      callees.push_back(
          {.rank = peer,
           .in_world = options_.in_world(peer),
           .description = describe(peer),
           .num_channels = num_channels(peer),
           .unix_name = is_local ? peers_[index(peer)].unix_name : "",
           .tcp = peers_[index(peer)].tcp,
           .context = is_local ? context_ : tcp_context(),
           .keys = agrees ? HandshakeSide::Keys::kAgree : HandshakeSide::Keys::kNone});
    }
    return callees;
  }

  // Calls the lower ranks, and accepts the higher ones.
  void meet_over_sockets() {
    Dialer dialer({options_.rank, options_.self()}, lower_ranks(), secret_, options_.name);
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
    for (vigil_.look(); expected > 0;) {
      entries.clear();
      acceptor_->add_to(entries);
      dialer.add_to(entries);
      const std::size_t first_lifeline = entries.size();
      const std::vector<int> watched = watch_.add_lifelines(*sockets_, entries);
      poll_for(entries, poll_limit(dialer));
      vigil_.look();
      for (NewChannel& channel : acceptor_->serve(entries)) expected -= take(std::move(channel));
      for (NewChannel& channel : go_on_calling(dialer, entries)) {
        connect(std::move(channel));
        --expected;
      }
      bool is_unread = false;
      for (std::size_t i = 0; i < watched.size(); ++i) {
        if (entries[first_lifeline + i].revents == 0) continue;
        watch_.require_connected(*sockets_, watched[i]);
        is_unread = true;
      }
      if (expected == 0) break;
      // Messages for the mesh stay in the channel, so poll() would not sleep.
      if (is_unread) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto missing = ranks_that(lacks_a_channel);
      watch_.look(missing);
      require_time_for(missing);
    }
  }

  std::chrono::milliseconds poll_limit(const Dialer& dialer) const {
    const auto left = std::min(put_off(deadline_).remaining(), dialer.time_left());
    return std::chrono::ceil<std::chrono::milliseconds>(
        std::min<std::chrono::nanoseconds>(left, kSlice));
  }

  std::vector<NewChannel> go_on_calling(Dialer& dialer, std::span<const pollfd> entries) {
    try {
      return dialer.serve(entries);
    } catch (const Error&) {
      watch_.require_connected_peers(*sockets_);  // a peer may already have sent the cause
      watch_.require_nobody_gave_up(FormationWatch::kNoticeWait);
      throw;
    }
  }

  void require_time_for(const std::vector<int>& missing) const {
    if (!put_off(deadline_).expired()) return;
    fail(ErrorCode::kTimeout, {.ranks = options_.in_world(missing), .deadline = options_.timeout},
         "{}: forming group {} took longer than {} ms; missing: {}; see their logs, and raise "
         "GroupOptions::timeout if they are only slow",
         options_.self(), options_.name, options_.timeout.count(), names_of(missing));
  }

  // Adds a rank's channel and returns 1; returns 0 if the channel was not expected.
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
    if (options_.link.encrypt && !over_unix_socket(made.peer)) {
      cipher = std::make_unique<Cipher>(cipher_with(made.peer), made.keys.derive(key_use_of(made)));
    }
    sockets_->connect(made.peer, static_cast<Channel>(made.channel), std::move(made.socket),
                      std::move(cipher));
  }

  // Names the purpose of the connection. The keys depend on this name: if an attacker changes the
  // purpose in transit, the connection breaks.
  std::string key_use_of(const NewChannel& made) const {
    return fmt::format("rank {} channel {}", std::max(options_.rank, made.peer), made.channel);
  }

  std::string describe(int peer) const {
    return rank_name(peer, options_.in_world(peer), peers_[index(peer)].host_name);
  }
  DescribeRank describer() const {
    return [this](int peer) { return describe(peer); };
  }

  std::vector<int> ranks_that(const std::function<bool(int peer)>& is_missing) const {
    std::vector<int> ranks;
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (peer != options_.rank && is_missing(peer)) ranks.push_back(peer);
    }
    return ranks;
  }

  std::string names_of(const std::vector<int>& ranks) const {
    std::string names;
    for (const int peer : ranks) names += (names.empty() ? "" : ", ") + describe(peer);
    return names;
  }

  // All ranks of a host compare the same addresses, so all make the same choice.
  void share_memory(Mesh& mesh) const {
    const auto& local = mesh.neighbours();
    const bool one_host = local.size() == static_cast<std::size_t>(mesh.world_size());
    const bool one_process = std::all_of(local.begin(), local.end(), [&](int peer) {
      return mesh.peer(peer).process == mesh.peer(mesh.rank()).process;
    });
    const auto kind = options_.link.transport;
    check(kind != TransportKind::kShm || one_host,
          "{}: transport shm was asked for, but the ranks of group {} are on several hosts",
          options_.self(), options_.name);
    if (local.size() == 1 || kind == TransportKind::kTcp) return;
    if (one_process && kind != TransportKind::kShm) {
      mesh.set_shared_memory(std::make_unique<LoopbackMemory>(mesh));
    } else {
      mesh.set_shared_memory(std::make_unique<ShmMemory>(mesh));
    }
  }

  // The group's wire; null until one exists.
  Wire* wire() const { return wire_ ? wire_.get() : sockets_.get(); }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  const ConnectOptions& options_;
  const Secret secret_;
  const std::string context_;
  // Made before deadline_, so that its first look() notices every standstill after this moment.
  Vigil vigil_;
  const Deadline deadline_;
  FormationWatch watch_;
  std::optional<Acceptor> acceptor_;
  std::vector<PeerAddress> peers_;
  std::unique_ptr<SocketWire> sockets_;  // moved into wire_ once all peers are connected
  std::unique_ptr<Wire> wire_;
};

}  // namespace

std::unique_ptr<Mesh> connect_mesh(const ConnectOptions& options, const Secret& secret) {
  return Connector(options, secret).connect();
}

}  // namespace paceline
