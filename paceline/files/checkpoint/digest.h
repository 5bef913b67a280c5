#pragma once

// XXH3-128 of bytes that come in pieces, at memory speed. It finds accidents (bit rot, truncation,
// a foreign file), not forgers: a program that can write the file can write the digest.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace paceline {

class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void update(std::span<const std::byte> bytes);
  // 32 lower-case hexadecimal digits, the canonical (big-endian) form that `xxhsum -H2` prints.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string digest_of(std::span<const std::byte> bytes);

}  // namespace paceline
