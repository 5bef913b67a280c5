#pragma once

// The job's secret, and the handshake by which two processes prove to each other that they know it.
//
// The secret is 32 random bytes that every process of a job shares and no other process knows. Keys
// for one purpose are derived from it, so that a message of one purpose, group or generation
// means nothing in another.
//
// It is never printed, never put on a command line and wiped when destroyed. Thread safety: const
// methods are safe.

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
#include "paceline/engine/core/system/fd.h"

namespace paceline {

class Secret {
 public:
  static constexpr std::size_t kSize = 32;
  using Mac = std::array<std::byte, 32>;

  // Fresh random bytes.
  static Secret generate();
  // 64 hexadecimal digits are the secret itself (the inverse of to_hex). Any other text of at least
  // 16 bytes is stretched to a key by Argon2id, which takes tens of milliseconds and 19 MiB. White
  // space at the end does not count. Error(kInvalid) when the text is shorter, Error(kSystem) for a
  // lack of memory.
  static Secret from_text(std::string_view text);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  // The secret as hexadecimal text, for a 0600 file or an inherited descriptor.
  std::string to_hex() const;
  // A key for `purpose` (for example "group 3/1"): BLAKE2b keyed with this secret.
  Secret derive(std::string_view purpose) const;
  // Keyed BLAKE2b over `message`.
  Mac authenticate(std::span<const std::byte> message) const;
  // Constant-time comparison of `mac` with authenticate(message).
  bool verify(std::span<const std::byte> message, std::span<const std::byte> mac) const;

 private:
  Secret() = default;
  std::array<std::byte, kSize> key_{};
};

// `count` cryptographically random bytes as lower-case hexadecimal text.
std::string random_hex(std::size_t count);
void fill_random(std::span<std::byte> bytes);

// Mutual challenge-response on a fresh connection, before anything else is parsed. Both ends prove
// that they know the same secret without showing it, and that they mean the same thing by the
// connection (`context`: for example "store" or "mesh world generation 0 from 2 to 0").
//
//   client -> server   magic "PLINE" + version (8 bytes), nonce_c (32)
//   server -> client   magic + version (8), nonce_s (32),
//                      MAC("server", nonce_c, nonce_s, context) (32)
//   client -> server   MAC("client", nonce_c, nonce_s, context) (32)
//   server -> client   one byte, 1: accepted
//
// The MAC is BLAKE2b-256 keyed with the secret (libsodium). At most 72 bytes are read before the
// other end is known. The context is not sent: ends that disagree about it fail as if the secret
// were wrong.
//
// Two ends that will encrypt agree on keys at the same time: each nonce is then the public half of
// a key pair made for this connection (X25519), which the proofs authenticate. Who learns the
// secret later cannot read what was recorded earlier. Whether to do so is part of the context.

// The client's half, which waits. Error(kInvalid) when the other end has another secret, context or
// protocol version (both versions are named), kTimeout at the deadline, kPeerLost when it hung up.
void authenticate_as_client(const Fd& socket, const Secret& secret, std::string_view context,
                            Deadline deadline);

// The keys that both ends of a connection derive from their key pairs, one for each direction.
struct SessionKeys {
  std::array<std::byte, Secret::kSize> send{}, receive{};
  SessionKeys() = default;
  SessionKeys(const SessionKeys&) = default;
  SessionKeys& operator=(const SessionKeys&) = default;
  ~SessionKeys();  // wipes them
  // Keys for `use`, a text that both ends know: where they mean different uses, they get different
  // keys.
  SessionKeys derive(std::string_view use) const;
};
// A key pair of X25519, wiped at its end.
class EphemeralKey {
 public:
  using Public = std::array<std::byte, 32>;
  EphemeralKey();
  ~EphemeralKey();
  EphemeralKey(const EphemeralKey&) = default;
  EphemeralKey& operator=(const EphemeralKey&) = default;
  const Public& public_half() const { return public_; }
  // Error(kInvalid) for a public half that is none.
  SessionKeys session_keys(const Public& other, bool is_client) const;

 private:
  Public public_{};
  std::array<std::byte, 32> private_{};
};

// One half of the handshake as a state machine for event loops: bytes in, bytes out, never waiting.
// It keeps at most 40 bytes of the peer's, and refuses a wrong magic at its first wrong byte.
//
// Thread safety: none. `secret` must outlive it.
class HandshakeHalf {
 public:
  enum class Keys { kNone, kAgree };

  // How many bytes it can take now; 0 once done().
  std::size_t wanted() const;
  // Takes 1 to wanted() bytes and returns what must be sent to the peer, often nothing.
  // Error(kInvalid) as above; the connection must then be closed.
  std::vector<std::byte> feed(std::span<const std::byte> bytes);
  // feed() with what the socket has now. As receive_some(): how many bytes came, 0 when the peer
  // hung up, -1 and errno otherwise (EAGAIN: none are there yet). `answer` must then be sent.
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
  enum class Stage { kHello, kProof, kAccepted, kDone };  // what is waited for

  HandshakeHalf(const Secret& secret, std::string_view context, std::string peer, Keys keys);
  HandshakeHalf(const HandshakeHalf&) = default;
  ~HandshakeHalf() = default;

  Secret::Mac proof(std::string_view role) const;
  void check_proof(std::string_view role) const;

 private:
  // Called when the bytes of this stage have arrived, a hello's nonce as `theirs_`, a proof as the
  // buffer's beginning: goes on to the next stage and returns the answer.
  virtual std::vector<std::byte> answer() = 0;
  virtual bool is_client() const = 0;
  std::vector<std::byte> transcript(std::string_view role) const;

  const Secret& secret_;
  const std::string context_, peer_;
  const std::optional<EphemeralKey> key_;
  std::size_t received_ = 0;  // in this stage
  std::array<std::byte, sizeof(Hello)> buffer_{};

 protected:
  const Hello mine_;
  Nonce theirs_{};
  Stage stage_ = Stage::kHello;
};

// `peer` names the other end in errors.
class ServerHandshake final : public HandshakeHalf {
 public:
  ServerHandshake(const Secret& secret, std::string_view context, std::string peer,
                  Keys keys = Keys::kNone);

 private:
  std::vector<std::byte> answer() override;
  bool is_client() const override { return false; }
};

// feed() returns the client's proof only to a server that has proved itself, so more may be sent
// at once.
class ClientHandshake final : public HandshakeHalf {
 public:
  ClientHandshake(const Secret& secret, std::string_view context, std::string peer,
                  Keys keys = Keys::kNone);
  // To be sent first.
  std::span<const std::byte> hello() const;

 private:
  std::vector<std::byte> answer() override;
  bool is_client() const override { return true; }
};

}  // namespace paceline
