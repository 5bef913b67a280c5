#pragma once

// The wire of ranks that are processes: Unix sockets to ranks of this host, and TCP, which may be
// encrypted, to ranks of other hosts.

#include <memory>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/transport/cipher.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

// A connection that the formation of a group hands to the wire. Both ends have proved that they
// know the secret.
struct NewChannel {
  int peer = 0;  // the peer's rank, as the caller claims; the called end cannot verify it
  int channel = 0;
  Fd socket;
  SessionKeys keys;  // keys of the connection, if it is to be encrypted
};

// A host that has not answered for this long is lost. Retransmitting a few lost packets takes less
// time, and even a very busy host answers sooner.
inline constexpr std::chrono::seconds kSilenceLimit{5};

struct PeerSockets {
  Fd channels[kMaxChannels];
  std::unique_ptr<Cipher> ciphers[kMaxChannels];  // null if the channel is not encrypted
  int num_streams = 1;
};

class SocketWire : public Wire {
 public:
  // Makes a wire without any connected peer.
  explicit SocketWire(int world_size);
  void connect(int peer, Channel channel, Fd socket, std::unique_ptr<Cipher> cipher);
  int world_size() const { return static_cast<int>(peers_.size()); }
  bool has(int peer, Channel channel) const { return socket(peer, channel) >= 0; }

  const char* name() const override { return "tcp"; }
  bool is_connected(int peer) const override { return has(peer, Channel::kControl); }
  int num_streams(int peer) const override;
  ssize_t send(int peer, Channel channel, std::span<const std::byte> head,
               std::span<const std::byte> rest) override;
  ssize_t receive(int peer, Channel channel, std::span<std::byte> into) override;
  ssize_t peek(int peer, Channel channel, std::span<std::byte> into) override;
  void wait(std::span<Interest> interests, std::chrono::milliseconds limit) override;
  void wait_or_wake(std::span<Interest> interests,
                    std::optional<std::chrono::milliseconds> limit) override;
  void wake() override;
  int socket(int peer, Channel channel) const override;

  // A descriptor that becomes readable after wake(), for callers that poll other descriptors as
  // well.
  int wakeup() const { return wakeup_.get(); }
  void forget_wakeup();

 private:
  Cipher* cipher(int peer, Channel channel) const;
  void wait_with(int wakeup, std::span<Interest> interests, std::chrono::milliseconds limit) const;

  std::vector<PeerSockets> peers_;
  const Fd wakeup_;  // an eventfd that wake() writes
};

}  // namespace paceline
