#pragma once

// Payloads that lie in one process and are read there by another of the same host, which knows
// their address (process_vm_readv): one copy, where a ring takes two. The kernel allows it between
// processes of one user, unless configured otherwise (Yama's ptrace_scope, seccomp, another pid
// namespace): the reader tries, and says so.
//
// It lies in memory that both map, zeroed at first; one for each direction of a pair. The sender
// offers, one payload at a time, and keeps it until it has been taken or the offer is withdrawn. A
// payload counts as read only if it has not been withdrawn meanwhile, and the process is still the
// same program: what was its memory then may hold anything. What cannot be read (a device's memory,
// memfd_secret; a process that has taken its permission back, or has ended) is refused, and has to
// go another way, where it shows if the sender has gone.
//
// Thread safety: one thread sends, one reads.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <sys/types.h>

namespace paceline {

class DirectRead {
 public:
  // ---- the sender's
  // `token` is not 0, is known to no other process, and stays where it is.
  void introduce(const std::uint64_t& token);
  // The reader has tried.
  bool is_possible() const { return reader_.load(std::memory_order_acquire) == kCan; }
  void offer() { offer_.store(kOffered, std::memory_order_release); }
  bool is_open() const { return offer_.load(std::memory_order_seq_cst) == kOffered; }
  bool is_taken() const { return offer_.load(std::memory_order_seq_cst) == kTaken; }
  bool is_refused() const { return offer_.load(std::memory_order_seq_cst) == kRefused; }
  void withdraw();

  // ---- the reader's
  // Whether the sender's memory can be read; tries once it has introduced itself.
  void try_once();
  // The bytes read; less than 1 with errno when that cannot be read.
  ssize_t read(std::uint64_t address, std::span<std::byte> into) const;
  // All has been read; refused when it is another program's by now.
  enum class End { kTaken, kRefused, kWithdrawn };
  End take();
  // `is_final`: of this sender nothing can be read any more.
  End refuse(bool is_final);

 private:
  enum Offer : std::uint32_t { kNone, kOffered, kTaken, kWithdrawn, kRefused };
  enum Reader : std::uint32_t { kUnknown, kCan, kCannot };

  bool sees_token() const;
  End end(Offer how);

  std::atomic<std::uint64_t> token_;
  std::uint64_t token_at_;
  std::int64_t pid_;
  std::atomic<std::uint32_t> reader_;
  std::atomic<std::uint32_t> offer_;
};

}  // namespace paceline
