#pragma once

// The job's secret, and the handshake by which two processes prove to each other that they know it.
//
// Thread safety: any thread may call the functions; the classes have none.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/secret.h"
#include "paceline/engine/core/system/fd.h"

namespace paceline {

// `count` cryptographically random bytes as lower-case hexadecimal text.
std::string random_hex(std::size_t count);
void fill_random(std::span<std::byte> bytes);

// Mutual challenge-response on a fresh connection, before anything else is parsed. Both ends prove
// that they know the same secret without revealing it, and that they use the connection for the
// same purpose (`context`, for example "store" or "mesh world generation 0 from 2 to 0").
//
//   client -> server   magic "PLINE" + version (8 bytes), nonce_c (32)
//   server -> client   magic + version (8), nonce_s (32),
//                      MAC("server", nonce_c, nonce_s, context) (32)
//   client -> server   MAC("client", nonce_c, nonce_s, context) (32)
//   server -> client   one byte, 1: accepted
//
// The MAC is BLAKE2b-256 keyed with the secret (libsodium). At most 72 bytes are read before the
// other end is authenticated. The context is not sent: if the two ends differ in it, the handshake
// fails as if the secret were wrong.
//
// Two ends that will encrypt agree on keys in the same exchange: each nonce is then the public key
// of a key pair made for this connection (X25519), which the proofs authenticate. An attacker who
// learns the secret later cannot decrypt traffic that was recorded earlier. The context says
// whether the connection is encrypted.

// Performs the client's side of the handshake. Throws Error(kInvalid) when the server has another
// secret, context or protocol version (the message names both versions), kTimeout at the deadline,
// and kPeerLost when the other end closed the connection.
void authenticate_as_client(const Fd& socket, const Secret& secret, std::string_view context,
                            Deadline deadline);

// The keys that both ends of a connection derive from their key pairs, one for each direction.
struct SessionKeys {
  std::array<std::byte, Secret::kSize> send{}, receive{};
  SessionKeys() = default;
  SessionKeys(const SessionKeys&) = default;
  SessionKeys& operator=(const SessionKeys&) = default;
  ~SessionKeys();  // wipes them
  // Keys for `use`, a text that both ends know. Ends that name different uses get different keys.
  SessionKeys derive(std::string_view use) const;
};
// An X25519 key pair. The private key is wiped on destruction.
class EphemeralKey {
 public:
  using Public = std::array<std::byte, 32>;
  EphemeralKey();
  ~EphemeralKey();
  EphemeralKey(const EphemeralKey&) = default;
  EphemeralKey& operator=(const EphemeralKey&) = default;
  const Public& public_key() const { return public_; }
  // Throws Error(kInvalid) when `other` is not a valid public key.
  SessionKeys session_keys(const Public& other, bool is_client) const;

 private:
  Public public_{};
  std::array<std::byte, 32> private_{};
};

// One side of the handshake as a state machine for event loops: bytes in, bytes out, never waiting.
// It buffers at most 40 bytes from the peer, and rejects a wrong magic at the first wrong byte.
//
// Thread safety: none. `secret` must outlive it.
class HandshakeSide {
 public:
  enum class Keys { kNone, kAgree };

  // The number of bytes that feed() can take now; 0 once done().
  std::size_t wanted() const;
  // Takes 1 to wanted() bytes, and returns the bytes that must be sent to the peer, often none.
  // Throws Error(kInvalid) as above; the connection must then be closed.
  std::vector<std::byte> feed(std::span<const std::byte> bytes);
  // Calls feed() with the bytes that the socket has now. Returns the result of receive_some(): the
  // number of bytes, 0 when the peer closed the connection, or -1 and errno (EAGAIN: no bytes yet).
  // The caller must then send `answer` to the peer.
  ssize_t receive(const Fd& socket, std::vector<std::byte>& answer);
  bool done() const { return stage_ == Stage::kDone; }
  // Requires: done(), and Keys::kAgree.
  SessionKeys session_keys() const;

 protected:
  using Nonce = EphemeralKey::Public;
  struct Hello {
    std::array<char, 8> magic;
    Nonce nonce;
  };
  enum class Stage { kHello, kProof, kAccepted, kDone };  // the message that is awaited

  HandshakeSide(const Secret& secret, std::string_view context, std::string peer, Keys keys);
  HandshakeSide(const HandshakeSide&) = default;
  ~HandshakeSide() = default;

  Secret::Mac proof(std::string_view role) const;
  void check_proof(std::string_view role) const;

 private:
  // Called when all bytes of this stage have arrived: a hello's nonce is in `theirs_`, a proof is
  // at the beginning of the buffer. Moves on to the next stage and returns the answer.
  virtual std::vector<std::byte> answer() = 0;
  virtual bool is_client() const = 0;
  std::vector<std::byte> transcript(std::string_view role) const;

  const Secret& secret_;
  const std::string context_, peer_;
  const std::optional<EphemeralKey> key_;
  std::size_t received_ = 0;  // bytes of this stage that have arrived
  std::array<std::byte, sizeof(Hello)> buffer_{};

 protected:
  const Hello mine_;
  Nonce theirs_{};
  Stage stage_ = Stage::kHello;
};

// The accepting end. `peer` names the other end in errors.
class ServerHandshake final : public HandshakeSide {
 public:
  ServerHandshake(const Secret& secret, std::string_view context, std::string peer,
                  Keys keys = Keys::kNone);

 private:
  std::vector<std::byte> answer() override;
  bool is_client() const override { return false; }
};

// The connecting end. feed() returns the client's proof only after the server's proof was correct,
// so the caller may send more data right after the client's proof.
class ClientHandshake final : public HandshakeSide {
 public:
  ClientHandshake(const Secret& secret, std::string_view context, std::string peer,
                  Keys keys = Keys::kNone);
  // The caller must send these bytes first.
  std::span<const std::byte> hello() const;

 private:
  std::vector<std::byte> answer() override;
  bool is_client() const override { return true; }
};

}  // namespace paceline
