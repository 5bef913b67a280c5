#pragma once

// The job's secret: 32 random bytes that every process of a job shares and no other process knows.
// Keys for one purpose are derived from it, so that a message of one purpose, group or generation
// means nothing in another.
//
// The secret is never printed and never put on a command line; it is wiped when it is destroyed.
// Thread safety: any thread may call const methods.

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace paceline {

class Secret {
 public:
  static constexpr std::size_t kSize = 32;
  using Mac = std::array<std::byte, 32>;

  // Fresh random bytes.
  static Secret generate();
  // 64 hexadecimal digits are the secret itself (the inverse of to_hex). Any other text of at least
  // 16 bytes is stretched to a key by Argon2id, which takes tens of milliseconds and 19 MiB.
  // Trailing spaces and line ends are ignored. Throws Error(kInvalid) for a shorter text, and
  // Error(kSystem) when memory is short.
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

}  // namespace paceline
