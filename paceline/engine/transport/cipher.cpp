#include "paceline/engine/transport/cipher.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sodium.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/io.h"

namespace paceline {
namespace {

// The most records that one system call sends or receives.
constexpr std::size_t kRecordsAtOnce = 4;
constexpr std::size_t kNonceBytes = 12;
static_assert(crypto_aead_aes256gcm_ABYTES == Cipher::kTagBytes &&
              crypto_aead_chacha20poly1305_ietf_ABYTES == Cipher::kTagBytes);
static_assert(crypto_aead_aes256gcm_NPUBBYTES == kNonceBytes &&
              crypto_aead_chacha20poly1305_ietf_NPUBBYTES == kNonceBytes);
static_assert(crypto_aead_aes256gcm_KEYBYTES == Secret::kSize &&
              crypto_aead_chacha20poly1305_ietf_KEYBYTES == Secret::kSize);

constexpr std::size_t kSealedBytes =
    Cipher::kLengthBytes + Cipher::kRecordBytes + Cipher::kTagBytes;

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

CipherKind best_cipher() {
  if (sodium_init() < 0) fail(ErrorCode::kSystem, "libsodium could not be initialised");
  return crypto_aead_aes256gcm_is_available() != 0 ? CipherKind::kAes256Gcm
                                                   : CipherKind::kChaCha20Poly1305;
}

const char* name_of(CipherKind kind) {
  switch (kind) {
    case CipherKind::kNone:
      return "nothing";
    case CipherKind::kChaCha20Poly1305:
      return "ChaCha20-Poly1305";
    case CipherKind::kAes256Gcm:
      return "AES-256-GCM";
  }
  return "?";
}

struct Cipher::Direction {
  Direction(CipherKind kind, const std::array<std::byte, Secret::kSize>& key)
      : is_aes(kind == CipherKind::kAes256Gcm) {
    if (is_aes) {
      crypto_aead_aes256gcm_beforenm(&expanded, raw(key.data()));
    } else {
      std::memcpy(plain.data(), key.data(), key.size());
    }
  }
  ~Direction() {
    sodium_memzero(&expanded, sizeof expanded);
    sodium_memzero(plain.data(), plain.size());
  }

  // The nonce is the record's number, which is never used twice under one key.
  std::array<unsigned char, kNonceBytes> next_nonce() {
    std::array<unsigned char, kNonceBytes> nonce{};
    std::memcpy(nonce.data(), &count, sizeof count);
    ++count;
    return nonce;
  }
  void seal(std::span<const std::byte> bytes, std::byte* to) {
    const auto nonce = next_nonce();
    if (is_aes) {
      crypto_aead_aes256gcm_encrypt_afternm(raw(to), nullptr, raw(bytes.data()), bytes.size(),
                                            nullptr, 0, nullptr, nonce.data(), &expanded);
    } else {
      crypto_aead_chacha20poly1305_ietf_encrypt(raw(to), nullptr, raw(bytes.data()), bytes.size(),
                                                nullptr, 0, nullptr, nonce.data(), plain.data());
    }
  }
  bool open(std::span<const std::byte> sealed, std::byte* to) {
    const auto nonce = next_nonce();
    return (is_aes ? crypto_aead_aes256gcm_decrypt_afternm(raw(to), nullptr, nullptr,
                                                           raw(sealed.data()), sealed.size(),
                                                           nullptr, 0, nonce.data(), &expanded)
                   : crypto_aead_chacha20poly1305_ietf_decrypt(
                         raw(to), nullptr, nullptr, raw(sealed.data()), sealed.size(), nullptr, 0,
                         nonce.data(), plain.data())) == 0;
  }

  const bool is_aes;
  std::uint64_t count = 0;
  std::array<unsigned char, Secret::kSize> plain{};
  crypto_aead_aes256gcm_state expanded{};
};

Cipher::Cipher(CipherKind kind, const SessionKeys& keys)
    : out_(std::make_unique<Direction>(kind, keys.send)),
      in_(std::make_unique<Direction>(kind, keys.receive)),
      sealed_(kRecordsAtOnce * kSealedBytes),
      arrived_(kRecordsAtOnce * kSealedBytes) {}

Cipher::~Cipher() = default;

// The bytes of a batch of records count as sent only once the whole batch is out. So unsent bytes
// always belong to a call that the caller repeats.
ssize_t Cipher::send(int socket, std::span<const std::byte> head,
                     std::span<const std::byte> payload) {
  if (head.size() + payload.size() < num_in_sealed_) {
    errno = EINVAL;
    return -1;
  }
  if (sealed_end_ == 0) {
    if (!head.empty()) seal(head);
    while (!payload.empty() && sealed_end_ + kSealedBytes <= sealed_.size()) {
      const auto part = payload.first(std::min(payload.size(), kRecordBytes));
      seal(part);
      payload = payload.subspan(part.size());
    }
  }
  return flush(socket);
}

void Cipher::seal(std::span<const std::byte> bytes) {
  const auto length = static_cast<std::uint32_t>(bytes.size() + kTagBytes);
  std::memcpy(sealed_.data() + sealed_end_, &length, sizeof length);
  out_->seal(bytes, sealed_.data() + sealed_end_ + kLengthBytes);
  sealed_end_ += kLengthBytes + length;
  num_in_sealed_ += bytes.size();
}

ssize_t Cipher::flush(int socket) {
  while (sealed_begin_ < sealed_end_) {
    const auto sealed = std::span<const std::byte>(sealed_).first(sealed_end_);
    const ssize_t sent = send_some(socket, sealed.subspan(sealed_begin_));
    if (sent < 0) return sent;
    sealed_begin_ += static_cast<std::size_t>(sent);
  }
  sealed_begin_ = sealed_end_ = 0;
  return static_cast<ssize_t>(std::exchange(num_in_sealed_, 0));
}

ssize_t Cipher::next_record() const {
  if (arrived_end_ - arrived_begin_ < kLengthBytes) return 0;
  std::uint32_t length = 0;
  std::memcpy(&length, arrived_.data() + arrived_begin_, sizeof length);
  if (length <= kTagBytes || length > kRecordBytes + kTagBytes) return -1;
  return arrived_end_ - arrived_begin_ >= kLengthBytes + length ? static_cast<ssize_t>(length) : 0;
}

ssize_t Cipher::fetch(int socket) {
  for (;;) {
    const ssize_t record = next_record();
    if (record > 0) return 1;
    if (record < 0) {
      errno = EBADMSG;
      return -1;
    }
    if (arrived_.size() - arrived_begin_ < kSealedBytes) {  // move the remaining bytes to the front
      std::memmove(arrived_.data(), arrived_.data() + arrived_begin_,
                   arrived_end_ - arrived_begin_);
      arrived_end_ -= std::exchange(arrived_begin_, 0);
    }
    const ssize_t got = receive_some(socket, std::span(arrived_).subspan(arrived_end_));
    if (got <= 0) return got;
    arrived_end_ += static_cast<std::size_t>(got);
  }
}

// Opens the record at the front. Requires: next_record() > 0, and `into` has the size that it
// returns, less the tag.
bool Cipher::open(std::span<std::byte> into) {
  const std::size_t length = into.size() + kTagBytes;
  const auto record = std::span<const std::byte>(arrived_).subspan(arrived_begin_ + kLengthBytes);
  if (!in_->open(record.first(length), into.data())) {
    errno = EBADMSG;
    return false;
  }
  arrived_begin_ += kLengthBytes + length;
  if (arrived_begin_ == arrived_end_) arrived_begin_ = arrived_end_ = 0;
  return true;
}

// Opens the next record if opened_ is empty.
ssize_t Cipher::refill(int socket) {
  if (opened_begin_ < opened_.size()) return 1;
  opened_begin_ = 0;
  opened_.clear();
  const ssize_t status = fetch(socket);
  if (status <= 0) return status;
  opened_.resize(static_cast<std::size_t>(next_record()) - kTagBytes);
  if (open(opened_)) return 1;
  opened_.clear();
  return -1;
}

ssize_t Cipher::receive(int socket, std::span<std::byte> into) {
  if (opened_begin_ == opened_.size()) {
    const ssize_t status = fetch(socket);
    if (status <= 0) return status;
    const std::size_t size = static_cast<std::size_t>(next_record()) - kTagBytes;
    if (size <= into.size()) return open(into.first(size)) ? static_cast<ssize_t>(size) : -1;
  }
  const ssize_t got = peek(socket, into);
  if (got > 0) opened_begin_ += static_cast<std::size_t>(got);
  return got;
}

ssize_t Cipher::peek(int socket, std::span<std::byte> into) {
  const ssize_t status = refill(socket);
  if (status <= 0) return status;
  const std::size_t count = std::min(into.size(), opened_.size() - opened_begin_);
  std::memcpy(into.data(), opened_.data() + opened_begin_, count);
  return static_cast<ssize_t>(count);
}

ssize_t send_on(int socket, Cipher* cipher, std::span<const std::byte> head,
                std::span<const std::byte> payload) {
  if (cipher != nullptr) return cipher->send(socket, head, payload);
  iovec parts[2];
  msghdr request{};
  request.msg_iov = parts;
  for (const auto& bytes : {head, payload}) {
    if (!bytes.empty()) {
      parts[request.msg_iovlen++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    }
  }
  return send_message(socket, request);
}

ssize_t receive_on(int socket, Cipher* cipher, std::span<std::byte> into) {
  return cipher != nullptr ? cipher->receive(socket, into) : receive_some(socket, into);
}

ssize_t peek_on(int socket, Cipher* cipher, std::span<std::byte> into) {
  return cipher != nullptr ? cipher->peek(socket, into) : receive_some(socket, into, MSG_PEEK);
}

}  // namespace paceline
