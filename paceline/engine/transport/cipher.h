#pragma once

// One end of an encrypted connection: what is sent becomes records, what comes in is opened again.
// A record is a length (u32), the ciphertext and its authentication tag; docs/wire_formats.md has
// the layout. The keys are made for this connection alone (engine/core/authentication.h), one for
// each direction, and records are counted, so that none can be read, changed, repeated, left out or
// swapped.
//
// Cost: a pass of the cipher over every byte at both ends, a copy, and 20 bytes for 64 KiB.
//
// Thread safety: none; sending and receiving may be done by two threads.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/authentication.h"

namespace paceline {

// The best cipher that a rank has; two ends use the lesser of theirs.
enum class CipherKind : std::uint8_t {
  kNone = 0,
  kChaCha20Poly1305 = 1,
  kAes256Gcm = 2,  // where the processor has instructions for it
};
CipherKind best_cipher();
const char* name_of(CipherKind kind);

class Cipher {
 public:
  static constexpr std::size_t kRecordBytes = 64 << 10;  // of a record, opened; the most
  static constexpr std::size_t kTagBytes = 16;
  static constexpr std::size_t kLengthBytes = 4;

  // Requires: kind is not kNone.
  Cipher(CipherKind kind, const SessionKeys& keys);
  ~Cipher();
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  // As sendmsg() without waiting, of the beginning of `head` and then `payload`: how many of their
  // bytes are through, or -1 and errno. A caller that got EAGAIN passes the same bytes again, also
  // with others behind them; EINVAL for fewer.
  ssize_t send(int socket, std::span<const std::byte> head, std::span<const std::byte> payload);
  // As recv() without waiting. -1 and EBADMSG when a record is not what the other end sent.
  ssize_t receive(int socket, std::span<std::byte> into);
  // The same, and the bytes stay.
  ssize_t peek(int socket, std::span<std::byte> into);

 private:
  struct Direction;  // a key and the number of its next record

  void seal(std::span<const std::byte> bytes);
  ssize_t flush(int socket);
  // 1 when a record can be opened, otherwise what recv() said.
  ssize_t fetch(int socket);
  // The size of the record that has arrived whole; 0 while it has not; -1 when it cannot be one.
  ssize_t next_record() const;
  bool open(std::span<std::byte> into);
  ssize_t refill(int socket);

  std::unique_ptr<Direction> out_, in_;
  std::vector<std::byte> sealed_;  // room for records on their way out
  std::size_t sealed_begin_ = 0, sealed_end_ = 0;
  std::size_t num_in_sealed_ = 0;   // of the caller's bytes
  std::vector<std::byte> arrived_;  // records, the last one perhaps in part
  std::size_t arrived_begin_ = 0, arrived_end_ = 0;
  std::vector<std::byte> opened_;  // what is opened and not fetched
  std::size_t opened_begin_ = 0;
};

// On a connection that is encrypted or, where `cipher` is null, is not.
ssize_t send_on(int socket, Cipher* cipher, std::span<const std::byte> head,
                std::span<const std::byte> payload);
ssize_t receive_on(int socket, Cipher* cipher, std::span<std::byte> into);
ssize_t peek_on(int socket, Cipher* cipher, std::span<std::byte> into);

}  // namespace paceline
