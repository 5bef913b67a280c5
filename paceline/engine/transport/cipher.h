#pragma once

// One end of an encrypted connection: it seals the bytes that are sent into records, and opens the
// records that arrive. A record is a length (u32), the ciphertext and its authentication tag;
// transport/FORMAT.md has the layout. The keys are made for this connection alone
// (engine/core/authentication.h), one for each direction, and records are counted. So an attacker
// cannot read records, nor change, repeat, drop or reorder them unnoticed.
//
// Cost: a pass of the cipher over every byte at both ends, a copy, and 20 bytes per record.
//
// Thread safety: none, except that one thread may send while another thread receives.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/authentication.h"

namespace paceline {

// The ciphers, in ascending order of preference. Each rank names the best cipher that it supports;
// a connection uses the less preferred of its two ranks' ciphers.
enum class CipherKind : std::uint8_t {
  kNone = 0,
  kChaCha20Poly1305 = 1,
  kAes256Gcm = 2,  // only on processors with AES instructions
};
CipherKind best_cipher();
const char* name_of(CipherKind kind);

class Cipher {
 public:
  static constexpr std::size_t kRecordBytes = 64 << 10;  // the most plaintext bytes in a record
  static constexpr std::size_t kTagBytes = 16;
  static constexpr std::size_t kLengthBytes = 4;

  // Requires: kind is not kNone.
  Cipher(CipherKind kind, const SessionKeys& keys);
  ~Cipher();
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  // Sends `head`, which must fit into one record, and then `payload` as sendmsg() would, without
  // waiting. Returns how many of their bytes were sent, or -1 with errno. After EAGAIN the caller
  // must pass the same bytes again, and may append more; EINVAL if it passes fewer.
  ssize_t send(int socket, std::span<const std::byte> head, std::span<const std::byte> payload);
  // Like recv(), without waiting. Returns -1 with EBADMSG if a record differs from the record that
  // the other end sent.
  ssize_t receive(int socket, std::span<std::byte> into);
  // Like receive(), but leaves the bytes in place.
  ssize_t peek(int socket, std::span<std::byte> into);

 private:
  struct Direction;  // a key and the number of its next record

  void seal(std::span<const std::byte> bytes);
  ssize_t flush(int socket);
  // Returns 1 once a whole record has arrived; otherwise the result of recv(), or -1 and EBADMSG.
  ssize_t fetch(int socket);
  // The size of the next record if all of it has arrived; 0 if not yet; -1 if its length is
  // invalid.
  ssize_t next_record() const;
  bool open(std::span<std::byte> into);
  ssize_t refill(int socket);

  std::unique_ptr<Direction> out_, in_;
  std::vector<std::byte> sealed_;  // records that are being sent
  std::size_t sealed_begin_ = 0, sealed_end_ = 0;
  std::size_t num_in_sealed_ = 0;   // the caller's bytes in sealed_
  std::vector<std::byte> arrived_;  // records, the last one perhaps in part
  std::size_t arrived_begin_ = 0, arrived_end_ = 0;
  std::vector<std::byte> opened_;  // plaintext that the caller has not fetched yet
  std::size_t opened_begin_ = 0;
};

// Send and receive on a connection, which is encrypted unless `cipher` is null.
ssize_t send_on(int socket, Cipher* cipher, std::span<const std::byte> head,
                std::span<const std::byte> payload);
ssize_t receive_on(int socket, Cipher* cipher, std::span<std::byte> into);
ssize_t peek_on(int socket, Cipher* cipher, std::span<std::byte> into);

}  // namespace paceline
