#include "paceline/transport/connect.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/ranges.h>
#include <poll.h>

#include "paceline/core/bytes.h"
#include "paceline/core/check.h"
#include "paceline/core/handshake.h"
#include "paceline/core/host.h"
#include "paceline/core/log.h"
#include "paceline/transport/acceptor.h"
#include "paceline/transport/loopback/memory.h"
#include "paceline/transport/notice.h"
#include "paceline/transport/shm/memory.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

// A rank listens before it publishes its address, so who refuses for so long does not live any
// more.
constexpr auto kLocalDialTimeout = 1s;
constexpr auto kTcpDialTimeout = 10s;
constexpr auto kSlice = 50ms;

class Connector {
 public:
  Connector(const ConnectOptions& options, const Secret& secret)
      : options_(options),
        secret_(secret.derive("mesh")),
        context_(fmt::format("mesh {} generation {} of {}", options.name, options.generation,
                             options.world_size)),
        deadline_(Deadline::after(options.timeout)),
        sockets_(static_cast<std::size_t>(options.world_size)) {}

  std::unique_ptr<Mesh> connect() {
    try {
      listen_and_publish();
      fetch_peers();
      for (int peer = 0; peer < options_.rank; ++peer) dial(peer);
      accept_higher_ranks();
    } catch (const Error& error) {
      // Before the sockets close, so that who sees that can read why.
      if (options_.give_up && error.code() != ErrorCode::kTimeout) {
        options_.give_up(encode_notice(error));
      }
      tell_connected_peers(error);
      throw;
    }
    auto mesh = std::make_unique<Mesh>(options_.name, options_.rank, std::move(peers_),
                                       std::move(sockets_));
    share_memory(*mesh);
    return mesh;
  }

 private:
  void listen_and_publish() {
    PeerAddress self;
    self.host = host_token();
    if (!options_.host.empty()) self.host += "/" + options_.host;
    self.process = process_token();
    self.host_name = host_name();
    self.cpus = allowed_cpus();
    self.members = options_.members;
    if (options_.encrypt) self.cipher = best_cipher();
    self.unix_name = "paceline-" + random_hex(16);
    Fd local = listen_unix(self.unix_name);
    Fd tcp = listen_tcp({options_.address, 0});
    self.tcp = {options_.address, local_port(tcp)};
    acceptor_.emplace(Acceptor::Doors{std::move(local), std::move(tcp), context_, tcp_context(),
                                      options_.encrypt},
                      secret_, options_.name);
    options_.publish(self.encode());
  }

  void fetch_peers() {
    for (int peer = 0; peer < options_.world_size; ++peer) {
      try {
        peers_.push_back(PeerAddress::decode(options_.fetch(peer)));
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("rank {}: rank {} of group {} did not come: {}",
                                              options_.rank, peer, options_.name, error.what()));
      }
      check(peers_.back().members == options_.members,
            "rank {}: group {} does not match: this rank means the ranks {} of the world, {} means "
            "{}; all ranks must make the same groups in the same order",
            options_.rank, options_.name, fmt::join(options_.members, ", "), describe(peer),
            fmt::join(peers_.back().members, ", "));
      require_same_encryption(peer);
    }
  }

  void require_same_encryption(int peer) const {
    const bool encrypts = peers_[index(peer)].cipher != CipherKind::kNone;
    check(encrypts == options_.encrypt,
          "rank {}: {} of group {} {}, but this rank {}; give all ranks --encrypt "
          "(PACELINE_ENCRYPT=1), or none",
          options_.rank, describe(peer), options_.name, encrypts ? "encrypts" : "does not encrypt",
          options_.encrypt ? "does" : "does not");
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

  void dial(int peer) {
    try {
      for (int channel = 0; channel < kNumChannels; ++channel) {
        Fd socket = connect_to(peer);
        if (options_.encrypt && !over_unix_socket(peer)) {
          const auto keys = agree_as_client(socket, secret_, tcp_context(), deadline_);
          sockets_[index(peer)].ciphers[channel] =
              std::make_unique<Cipher>(cipher_with(peer), keys);
        } else {
          authenticate_as_client(socket, secret_, context_, deadline_);
        }
        const std::array<std::int32_t, 2> hello = {options_.rank, channel};
        send_all(socket, std::as_bytes(std::span(hello)), deadline_);
        sockets_[index(peer)].channels[channel] = std::move(socket);
      }
    } catch (const Error& error) {
      require_connected_peers();  // the cause may have been told already
      require_nobody_gave_up();
      throw Error(error.code(),
                  fmt::format("rank {}: connecting to {} of group {} failed: {}", options_.rank,
                              describe(peer), options_.name, error.what()));
    }
  }

  Fd connect_to(int peer) {
    const auto& address = peers_[index(peer)];
    const bool local = over_unix_socket(peer);
    const auto limit = std::min<std::chrono::nanoseconds>(
        deadline_.remaining(), local || is_loopback(address.tcp.host)
                                   ? std::chrono::nanoseconds(kLocalDialTimeout)
                                   : std::chrono::nanoseconds(kTcpDialTimeout));
    try {
      return local ? connect_unix(address.unix_name, Deadline::after(limit))
                   : connect_tcp(address.tcp, Deadline::after(limit));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
      fail(ErrorCode::kPeerLost, "it has died, or a firewall is between the hosts: {}",
           error.what());
    }
  }

  void accept_higher_ranks() {
    int expected = (options_.world_size - 1 - options_.rank) * kNumChannels;
    while (expected > 0) {
      std::vector<pollfd> entries;
      acceptor_->add_to(entries);
      ::poll(entries.data(), entries.size(), deadline_.poll_timeout_ms(kSlice));
      for (Arrival& arrival : acceptor_->serve()) expected -= take(std::move(arrival));
      require_connected_peers();
      if (expected > 0 && deadline_.expired()) {
        fail(ErrorCode::kTimeout, "rank {}: forming group {} took longer than {} ms; missing: {}",
             options_.rank, options_.name, options_.timeout.count(), missing_ranks());
      }
    }
  }

  // 1 when a rank's channel was added, 0 when it was not expected.
  int take(Arrival arrival) {
    const auto [peer, channel] = std::pair(arrival.rank, arrival.channel);
    if (peer <= options_.rank || peer >= options_.world_size || channel < 0 ||
        channel >= kNumChannels || sockets_[index(peer)].channels[channel]) {
      log::warning(
          fmt::format("group {}: a peer that claims to be rank {}, channel {}, was refused",
                      options_.name, peer, channel));
      return 0;
    }
    auto& sockets = sockets_[index(peer)];
    if (options_.encrypt && !over_unix_socket(peer)) {
      sockets.ciphers[channel] = std::make_unique<Cipher>(cipher_with(peer), arrival.keys);
    }
    sockets.channels[channel] = std::move(arrival.socket);
    return 1;
  }

  // Looks without reading: what comes after the group has formed is the mesh's.
  void require_connected_peers() const {
    for (int peer = 0; peer < options_.world_size; ++peer) {
      const auto& sockets = sockets_[index(peer)];
      const Fd& control = sockets.channels[static_cast<int>(Channel::kControl)];
      if (!control) continue;
      std::array<char, kMaxNoticeBytes> buffer;
      const ssize_t got =
          peek_on(control.get(), sockets.ciphers[static_cast<int>(Channel::kControl)].get(),
                  std::as_writable_bytes(std::span(buffer)));
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) {
        fail(ErrorCode::kPeerLost, "rank {}: {} died while group {} formed", options_.rank,
             describe(peer), options_.name);
      }
      const auto notice = decode_notice(std::span(buffer).first(static_cast<std::size_t>(got)));
      if (notice && notice->goodbye) continue;
      throw Error(code_after(notice),
                  fmt::format("rank {}: {} gave up while group {} formed: {}", options_.rank,
                              describe(peer), options_.name,
                              notice ? notice->text : "(its notice cannot be read)"));
    }
  }

  void require_nobody_gave_up() const {
    const std::string text = options_.given_up ? options_.given_up() : std::string();
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
    const std::string notice = encode_notice(error);
    for (const PeerSockets& peer : sockets_) {
      const Fd& control = peer.channels[static_cast<int>(Channel::kControl)];
      if (control) {
        send_on(control.get(), peer.ciphers[static_cast<int>(Channel::kControl)].get(),
                as_bytes(notice), {});
      }
    }
  }

  std::string describe(int peer) const {
    return fmt::format("rank {} ({})", peer, peers_[index(peer)].host_name);
  }

  std::string missing_ranks() const {
    std::string names;
    for (int peer = options_.rank + 1; peer < options_.world_size; ++peer) {
      for (const Fd& channel : sockets_[index(peer)].channels) {
        if (channel) continue;
        names += (names.empty() ? "" : ", ") + describe(peer);
        break;
      }
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
          "transport shm was asked for, but the ranks of group {} are on several hosts",
          options_.name);
    check(kind != TransportKind::kLoopback || (one_host && one_process),
          "transport loopback was asked for, but the ranks of group {} are not threads of one "
          "process",
          options_.name);
    if (local.size() == 1 || kind == TransportKind::kTcp) return;
    if (one_process && kind != TransportKind::kShm) {
      mesh.set_shared_memory(std::make_unique<LoopbackMemory>(mesh));
    } else {
      mesh.set_shared_memory(std::make_unique<ShmMemory>(mesh));
    }
  }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  const ConnectOptions& options_;
  const Secret secret_;
  const std::string context_;
  const Deadline deadline_;
  std::optional<Acceptor> acceptor_;
  std::vector<PeerAddress> peers_;
  std::vector<PeerSockets> sockets_;
};

}  // namespace

TransportKind parse_transport(const std::string& name) {
  if (name == "auto") return TransportKind::kAuto;
  if (name == "tcp") return TransportKind::kTcp;
  if (name == "shm") return TransportKind::kShm;
  if (name == "loopback") return TransportKind::kLoopback;
  fail(ErrorCode::kInvalid, "transport '{}' is unknown; choose auto, shm, tcp or loopback", name);
}

std::unique_ptr<Mesh> connect_mesh(const ConnectOptions& options, const Secret& secret) {
  return Connector(options, secret).connect();
}

}  // namespace paceline
