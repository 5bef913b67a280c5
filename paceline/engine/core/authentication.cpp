#include "paceline/engine/core/authentication.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <sodium.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline {

namespace {

void require_sodium() {
  static const int status = sodium_init();
  if (status < 0) throw Error(ErrorCode::kSystem, "libsodium could not be initialised");
}

// A text may be a password that a person chose. Anyone who connects to a process of the job
// receives a proof against which guesses can be tested, so each guess must be expensive: Argon2id
// with the smallest parameters that OWASP recommends. All processes of a job must derive the same
// key, so the salt is fixed.
constexpr std::array<unsigned char, crypto_pwhash_SALTBYTES> kTextSalt = {
    'p', 'a', 'c', 'e', 'l', 'i', 'n', 'e', ' ', 's', 'e', 'c', 'r', 'e', 't', '1'};
constexpr unsigned long long kTextPasses = 2;
constexpr std::size_t kTextMemory = 19 << 20;

std::array<std::byte, Secret::kSize> key_of_text(std::string_view text) {
  std::array<std::byte, Secret::kSize> key{};
  if (crypto_pwhash(as_octets(key.data()), key.size(), text.data(), text.size(), kTextSalt.data(),
                    kTextPasses, kTextMemory, crypto_pwhash_ALG_ARGON2ID13) != 0) {
    throw Error(ErrorCode::kSystem,
                "not enough memory (19 MiB) to derive the job secret from its text");
  }
  return key;
}

std::string to_hex_text(std::span<const std::byte> bytes) {
  std::string text(bytes.size() * 2 + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), as_octets(bytes.data()), bytes.size());
  text.pop_back();
  return text;
}

}  // namespace

Secret Secret::generate() {
  Secret secret;
  fill_random(secret.key_);
  return secret;
}

Secret Secret::from_text(std::string_view text) {
  require_sodium();
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.remove_suffix(1);
  }
  if (text.size() < 16) {
    throw Error(
        ErrorCode::kInvalid,
        "the job secret is shorter than 16 characters; make one with: openssl rand -hex 32");
  }
  Secret secret;
  std::size_t decoded = 0;
  if (text.size() == 2 * kSize &&
      sodium_hex2bin(as_octets(secret.key_.data()), kSize, text.data(), text.size(), nullptr,
                     &decoded, nullptr) == 0 &&
      decoded == kSize) {
    return secret;
  }
  secret.key_ = key_of_text(text);
  return secret;
}

Secret::~Secret() { sodium_memzero(key_.data(), key_.size()); }

std::string Secret::to_hex() const { return to_hex_text(key_); }

Secret Secret::derive(std::string_view purpose) const {
  Secret derived;
  derived.key_ = authenticate(as_bytes(purpose));
  return derived;
}

Secret::Mac Secret::authenticate(std::span<const std::byte> message) const {
  require_sodium();
  Mac mac;
  crypto_generichash(as_octets(mac.data()), mac.size(), as_octets(message.data()), message.size(),
                     as_octets(key_.data()), key_.size());
  return mac;
}

bool Secret::verify(std::span<const std::byte> message, std::span<const std::byte> mac) const {
  const Mac expected = authenticate(message);
  return mac.size() == expected.size() &&
         sodium_memcmp(mac.data(), expected.data(), expected.size()) == 0;
}

void fill_random(std::span<std::byte> bytes) {
  require_sodium();
  randombytes_buf(bytes.data(), bytes.size());
}

std::string random_hex(std::size_t count) {
  std::vector<std::byte> bytes(count);
  fill_random(bytes);
  return to_hex_text(bytes);
}

namespace {

constexpr std::array<char, 8> kMagic = {'P', 'L', 'I', 'N', 'E', '\0', '\0', 3};
constexpr std::size_t kVersionByte = 7;
constexpr std::byte kAccepted{1};

// Checks the first bytes of a hello, which may still be incomplete.
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

EphemeralKey::Public random_nonce() {
  EphemeralKey::Public nonce;
  fill_random(nonce);
  return nonce;
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
    crypto_generichash(as_octets(to->data()), to->size(), as_octets(as_bytes(use).data()),
                       use.size(), as_octets(from->data()), from->size());
  }
  return derived;
}

EphemeralKey::EphemeralKey() {
  static_assert(crypto_kx_PUBLICKEYBYTES == sizeof(Public) && crypto_kx_SECRETKEYBYTES == 32 &&
                crypto_kx_SESSIONKEYBYTES == Secret::kSize && sizeof(Public) == 32);
  require_sodium();
  crypto_kx_keypair(as_octets(public_.data()), as_octets(private_.data()));
}

EphemeralKey::~EphemeralKey() { sodium_memzero(private_.data(), private_.size()); }

SessionKeys EphemeralKey::session_keys(const Public& other, bool is_client) const {
  SessionKeys keys;
  const auto derive = is_client ? crypto_kx_client_session_keys : crypto_kx_server_session_keys;
  if (derive(as_octets(keys.receive.data()), as_octets(keys.send.data()), as_octets(public_.data()),
             as_octets(private_.data()), as_octets(other.data())) != 0) {
    fail(ErrorCode::kInvalid, "the other end of a connection sent no valid key for encryption");
  }
  return keys;
}

void authenticate_as_client(const Fd& socket, const Secret& secret, std::string_view context,
                            Deadline deadline) {
  ClientHandshake handshake(secret, context, peer_name(socket));
  send_all(socket, handshake.hello(), deadline);
  while (!handshake.done()) {
    std::vector<std::byte> bytes(handshake.wanted());
    receive_all(socket, bytes, deadline);
    send_all(socket, handshake.feed(bytes), deadline);
  }
}

HandshakeSide::HandshakeSide(const Secret& secret, std::string_view context, std::string peer,
                             Keys keys)
    : secret_(secret),
      context_(context),
      peer_(std::move(peer)),
      key_(keys == Keys::kAgree ? std::optional<EphemeralKey>(std::in_place) : std::nullopt),
      mine_{kMagic, key_ ? key_->public_key() : random_nonce()} {}

std::size_t HandshakeSide::wanted() const {
  switch (stage_) {
    case Stage::kHello:
      return sizeof(Hello) - received_;
    case Stage::kProof:
      return sizeof(Secret::Mac) - received_;
    case Stage::kAccepted:
      return sizeof kAccepted - received_;
    case Stage::kDone:
      return 0;
  }
  return 0;
}

std::vector<std::byte> HandshakeSide::feed(std::span<const std::byte> bytes) {
  check(bytes.size() <= wanted(), "the handshake expects {} bytes now, not {}", wanted(),
        bytes.size());
  std::copy(bytes.begin(), bytes.end(), buffer_.begin() + received_);
  received_ += bytes.size();
  if (stage_ == Stage::kHello) check_magic(std::span(buffer_).first(received_), peer_);
  if (wanted() > 0) return {};
  received_ = 0;
  if (stage_ == Stage::kHello) {
    std::memcpy(theirs_.data(), buffer_.data() + offsetof(Hello, nonce), theirs_.size());
  }
  return answer();
}

ssize_t HandshakeSide::receive(const Fd& socket, std::vector<std::byte>& answer) {
  std::array<std::byte, sizeof(Hello)> bytes;
  const ssize_t got = receive_some(socket.get(), std::span(bytes).first(wanted()));
  if (got > 0) answer = feed(std::span(bytes).first(static_cast<std::size_t>(got)));
  return got;
}

SessionKeys HandshakeSide::session_keys() const {
  check(key_.has_value() && done(), "no keys were agreed on with {}", peer_);
  return key_->session_keys(theirs_, is_client());
}

std::vector<std::byte> HandshakeSide::transcript(std::string_view role) const {
  ByteWriter writer;
  writer.put_string(role);
  writer.put_bytes(is_client() ? mine_.nonce : theirs_);
  writer.put_bytes(is_client() ? theirs_ : mine_.nonce);
  writer.put_string(context_);
  return writer.take();
}

Secret::Mac HandshakeSide::proof(std::string_view role) const {
  return secret_.authenticate(transcript(role));
}

void HandshakeSide::check_proof(std::string_view role) const {
  if (!secret_.verify(transcript(role), std::span(buffer_).first(sizeof(Secret::Mac)))) {
    fail(ErrorCode::kInvalid,
         "{} has another job secret or belongs to another job, group or generation", peer_);
  }
}

ServerHandshake::ServerHandshake(const Secret& secret, std::string_view context, std::string peer,
                                 Keys keys)
    : HandshakeSide(secret, context, std::move(peer), keys) {}

std::vector<std::byte> ServerHandshake::answer() {
  if (stage_ == Stage::kHello) {
    stage_ = Stage::kProof;
    ByteWriter answer;
    answer.put_bytes(std::as_bytes(std::span(&mine_, 1)));
    answer.put_bytes(proof("server"));
    return answer.take();
  }
  check_proof("client");
  stage_ = Stage::kDone;
  return {kAccepted};
}

ClientHandshake::ClientHandshake(const Secret& secret, std::string_view context, std::string peer,
                                 Keys keys)
    : HandshakeSide(secret, context, std::move(peer), keys) {}

std::span<const std::byte> ClientHandshake::hello() const {
  return std::as_bytes(std::span(&mine_, 1));
}

std::vector<std::byte> ClientHandshake::answer() {
  if (stage_ == Stage::kHello) {
    stage_ = Stage::kProof;
    return {};
  }
  if (stage_ == Stage::kProof) {
    check_proof("server");
    stage_ = Stage::kAccepted;
    const auto own = proof("client");
    return {own.begin(), own.end()};
  }
  stage_ = Stage::kDone;
  return {};
}

}  // namespace paceline
