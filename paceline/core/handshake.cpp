#include "paceline/core/handshake.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include <sodium.h>

#include "paceline/core/bytes.h"
#include "paceline/core/check.h"
#include "paceline/core/socket.h"

namespace paceline {
namespace {

constexpr std::array<char, 8> kMagic = {'P', 'L', 'I', 'N', 'E', '\0', '\0', 1};
constexpr std::size_t kVersionByte = 7;
constexpr std::size_t kNonceSize = 32;
using Nonce = std::array<std::byte, kNonceSize>;

struct Hello {
  std::array<char, 8> magic;
  Nonce nonce;
};

std::vector<std::byte> transcript(std::string_view role, const Nonce& client, const Nonce& server,
                                  std::string_view context) {
  ByteWriter writer;
  writer.put_string(role);
  writer.put_bytes(client);
  writer.put_bytes(server);
  writer.put_string(context);
  return writer.take();
}

Hello make_hello(const EphemeralKey* key) {
  Hello hello{kMagic, {}};
  if (key != nullptr) {
    hello.nonce = key->public_half();
  } else {
    fill_random(hello.nonce);
  }
  return hello;
}

void send_hello(const Fd& socket, const Hello& hello, Deadline deadline) {
  send_all(socket, std::as_bytes(std::span(&hello, 1)), deadline);
}

// Looks at the first `count` bytes of a hello, which may still be incomplete.
void check_magic(std::span<const std::byte> hello, const std::string& peer) {
  const auto count = std::min(hello.size(), kMagic.size());
  if (std::memcmp(hello.data(), kMagic.data(), std::min(count, kVersionByte)) != 0) {
    fail(ErrorCode::kInvalid, "{} does not speak Paceline's protocol", peer);
  }
  if (count > kVersionByte && hello[kVersionByte] != std::byte(kMagic[kVersionByte])) {
    fail(ErrorCode::kInvalid, "{} speaks protocol version {}, this build speaks {}", peer,
         static_cast<int>(hello[kVersionByte]), static_cast<int>(kMagic[kVersionByte]));
  }
}

void check_proof_of(const std::string& peer, const Secret& secret,
                    std::span<const std::byte> message, std::span<const std::byte> mac) {
  if (!secret.verify(message, mac)) {
    fail(ErrorCode::kInvalid,
         "{} has another job secret or belongs to another job, group or generation", peer);
  }
}

Hello receive_hello(const Fd& socket, Deadline deadline) {
  Hello hello;
  const auto bytes = std::as_writable_bytes(std::span(&hello, 1));
  receive_all(socket, bytes, deadline);
  check_magic(bytes, peer_name(socket));
  return hello;
}

// Returns the server's nonce.
Nonce prove_as_client(const Fd& socket, const Secret& secret, std::string_view context,
                      const EphemeralKey* key, Deadline deadline) {
  const Hello mine = make_hello(key);
  send_hello(socket, mine, deadline);
  const Hello theirs = receive_hello(socket, deadline);
  Secret::Mac mac;
  receive_all(socket, mac, deadline);
  check_proof_of(peer_name(socket), secret, transcript("server", mine.nonce, theirs.nonce, context),
                 mac);
  send_all(socket, secret.authenticate(transcript("client", mine.nonce, theirs.nonce, context)),
           deadline);
  std::array<std::byte, 1> accepted{};
  receive_all(socket, accepted, deadline);
  return theirs.nonce;
}

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

SessionKeys::~SessionKeys() {
  sodium_memzero(send.data(), send.size());
  sodium_memzero(receive.data(), receive.size());
}

SessionKeys SessionKeys::derive(std::string_view use) const {
  SessionKeys derived;
  for (const auto& [from, to] :
       {std::pair(&send, &derived.send), std::pair(&receive, &derived.receive)}) {
    crypto_generichash(raw(to->data()), to->size(), raw(as_bytes(use).data()), use.size(),
                       raw(from->data()), from->size());
  }
  return derived;
}

EphemeralKey::EphemeralKey() {
  static_assert(crypto_kx_PUBLICKEYBYTES == sizeof(Public) && crypto_kx_SECRETKEYBYTES == 32 &&
                crypto_kx_SESSIONKEYBYTES == Secret::kSize && sizeof(Public) == kNonceSize);
  if (sodium_init() < 0) fail(ErrorCode::kSystem, "libsodium could not be initialised");
  crypto_kx_keypair(raw(public_.data()), raw(private_.data()));
}

EphemeralKey::~EphemeralKey() { sodium_memzero(private_.data(), private_.size()); }

SessionKeys EphemeralKey::session_keys(const Public& other, bool is_client) const {
  SessionKeys keys;
  const auto derive = is_client ? crypto_kx_client_session_keys : crypto_kx_server_session_keys;
  if (derive(raw(keys.receive.data()), raw(keys.send.data()), raw(public_.data()),
             raw(private_.data()), raw(other.data())) != 0) {
    fail(ErrorCode::kInvalid, "the other end of a connection gave no key to encrypt with");
  }
  return keys;
}

void authenticate_as_client(const Fd& socket, const Secret& secret, std::string_view context,
                            Deadline deadline) {
  prove_as_client(socket, secret, context, nullptr, deadline);
}

SessionKeys agree_as_client(const Fd& socket, const Secret& secret, std::string_view context,
                            Deadline deadline) {
  const EphemeralKey key;
  return key.session_keys(prove_as_client(socket, secret, context, &key, deadline), true);
}

void authenticate_as_server(const Fd& socket, const Secret& secret, std::string_view context,
                            Deadline deadline) {
  ServerHandshake handshake(secret, context, peer_name(socket));
  while (!handshake.done()) {
    std::vector<std::byte> bytes(handshake.wanted());
    receive_all(socket, bytes, deadline);
    send_all(socket, handshake.feed(bytes), deadline);
  }
}

ServerHandshake::ServerHandshake(const Secret& secret, std::string_view context, std::string peer,
                                 Keys keys)
    : secret_(secret), context_(context), peer_(std::move(peer)) {
  static_assert(kHelloSize == sizeof(Hello));
  if (keys == Keys::kAgree) key_.emplace();
}

SessionKeys ServerHandshake::session_keys() const {
  check(key_.has_value() && done(), "{} has agreed on no keys", peer_);
  return key_->session_keys(client_key_, false);
}

std::size_t ServerHandshake::wanted() const {
  switch (stage_) {
    case Stage::kHello:
      return kHelloSize - received_;
    case Stage::kProof:
      return sizeof(Secret::Mac) - received_;
    case Stage::kDone:
      return 0;
  }
  return 0;
}

std::vector<std::byte> ServerHandshake::feed(std::span<const std::byte> bytes) {
  check(bytes.size() <= wanted(), "a handshake takes {} bytes now, not {}", wanted(), bytes.size());
  std::copy(bytes.begin(), bytes.end(), buffer_.begin() + received_);
  received_ += bytes.size();
  if (stage_ == Stage::kHello) check_magic(std::span(buffer_).first(received_), peer_);
  if (wanted() > 0) return {};
  received_ = 0;
  return stage_ == Stage::kHello ? answer_hello() : check_proof();
}

std::vector<std::byte> ServerHandshake::answer_hello() {
  Nonce theirs;
  std::memcpy(theirs.data(), buffer_.data() + offsetof(Hello, nonce), theirs.size());
  client_key_ = theirs;
  const Hello mine = make_hello(key_ ? &*key_ : nullptr);
  expected_ = transcript("client", theirs, mine.nonce, context_);
  stage_ = Stage::kProof;
  ByteWriter answer;
  answer.put_bytes(std::as_bytes(std::span(&mine, 1)));
  answer.put_bytes(secret_.authenticate(transcript("server", theirs, mine.nonce, context_)));
  return answer.take();
}

std::vector<std::byte> ServerHandshake::check_proof() {
  check_proof_of(peer_, secret_, expected_, std::span(buffer_).first(sizeof(Secret::Mac)));
  stage_ = Stage::kDone;
  return {std::byte{1}};
}

}  // namespace paceline
