#include "paceline/engine/core/secret.h"

#include <array>
#include <cstddef>
#include <vector>

#include <sodium.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error.h"

namespace paceline {
namespace {

void require_sodium() {
  static const int status = sodium_init();
  if (status < 0) throw Error(ErrorCode::kSystem, "libsodium could not be initialised");
}

// A text may be one that somebody made up. Whoever connects to a process of the job gets a proof to
// try guesses on, so a guess must not be cheap: Argon2id with the least that OWASP advises. All
// processes of a job must come to the same key, so the salt is fixed.
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

}  // namespace paceline
