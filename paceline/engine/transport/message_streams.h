#pragma once

// The point-to-point channels of a rank: to the ranks of its host through rings in memory that both
// ends map, without a system call; to the others, or without such memory, over the wire. Large
// payloads to ranks of this host can be read where they lie instead (DirectRead).
//
// Each rank's block of memory has a ring for every rank of the host, which that rank writes and
// this one reads. An end that is about to sleep says so in the ring; the other end, when it then
// moves something, writes a byte to the wire's channel, the *bell*. When that channel closes, the
// stream ends after the bytes left in the ring.
//
// Invariants of a ring. Positions count the bytes of all time; place p lies at p mod capacity.
//
//  1. Each position has one writer: `written` the writing end, `taken` the reading end. An end
//  keeps
//     its own position in its Lane and never reads it back, so a peer cannot move it.
//  2. taken <= written <= taken + capacity. The writer advances `written` only over room that it
//  has
//     seen in `taken`, the reader `taken` only over bytes that it has seen in `written`.
//  3. Bytes in [taken, written) do not change: the writer stores `written` (release) after it has
//     copied the bytes, and the reader loads it (acquire) before it copies them out.
//  4. A place is written again only after it was read: the reader stores `taken` (release) after it
//     has copied the bytes out, and the writer loads it (acquire) before it writes there.
//  5. No wake-up is lost. A sleeper stores its flag and then loads the position; the other end
//     stores the position and then loads the flag. All four are sequentially consistent, so they
//     have one order, in which one of the two stores comes first: either the sleeper sees the new
//     position and does not sleep, or the mover sees the flag and rings. Acquire and release would
//     not do: they let both loads pass the stores before them.
//  6. The mover rings only if its exchange takes the flag from 1 to 0: at most one bell for each
//     sleep. The sleeper clears its flag when it wakes; a bell that was rung meanwhile stays in the
//     channel, and the next sleep hears and ignores it.
//  7. A reader believes `written` only within 2: beyond it, the memory is damaged (kCorrupt).
//
// Invariants of an offered payload. It has one word, `offer_`, per direction of a pair:
//
//  8. kOffered is left by exactly one compare-and-exchange: the reader's to kTaken or kRefused, or
//     the sender's to kWithdrawn. The one that loses sees the other's word.
//  9. The sender keeps the payload unchanged until it has seen kTaken or kRefused, or has withdrawn
//     the offer itself.
// 10. A read is valid only if, afterwards, the sender's token still lies where it said and the
// offer
//     still stands: a process that called exec() has other contents there, and one that has
//     withdrawn may have changed them.
//
// Thread safety: one thread sends and receives, but for wake() and sleep().

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

// Payloads that lie in one process and are read there by another of the same host, which knows
// their address (process_vm_readv): one copy, where a ring takes two. The kernel allows it between
// processes of one user, unless configured otherwise (Yama's ptrace_scope, seccomp, another pid
// namespace): the reader tries, and says so.
//
// It lies in memory that both map, zeroed at first; one for each direction of a pair. The sender
// offers one payload at a time. A payload that cannot be read (a device's memory, memfd_secret, a
// process that has taken its permission back or has ended) is refused and has to be sent through
// the ring, where it shows if the sender is gone.
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
  // All bytes have been read; kRefused when the process is another program by now.
  enum class End { kTaken, kRefused, kWithdrawn };
  End take();
  // `is_final`: no later payload of this sender can be read either.
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

// Where the rings of a host's ranks lie: in every block from `offset` on, a multiple of 128.
struct RingMemory {
  // Null: there are none. Owners: the allocating object, and these streams.
  std::shared_ptr<SharedBlocks> blocks;
  std::size_t offset = 0;
};

class MessageStreams {
 public:
  // The ranks of this host are reached through `memory`, if there is any. Requires: the same on all
  // of them, zeroed, with room for bytes_for(them); `mesh` outlives this object.
  MessageStreams(Mesh& mesh, RingMemory memory);

  // The bytes that a host of so many ranks needs in each block; pages may be allocated on touch.
  static std::size_t bytes_for(std::size_t num_ranks);

  // Rings lead to `peer` and back; the first takes so many bytes now, the second has as many.
  bool has_ring(int peer) const { return lane(peer).in != nullptr; }
  bool has_room(int peer, std::size_t bytes);
  bool has_come(int peer, std::size_t bytes);
  // As Wire has them.
  ssize_t send(int peer, std::span<const std::byte> head, std::span<const std::byte> rest);
  // Error(kCorrupt) for bytes that `peer` did not send so.
  ssize_t receive(int peer, std::span<std::byte> into);
  ssize_t peek(int peer, std::span<std::byte> into);

  // A payload that `peer` reads where it lies, as what is sent then says. One at a time; it stays
  // as it is until it is taken, refused or withdrawn.
  enum class Offered { kOpen, kTaken, kRefused };
  bool can_offer(int peer) const;
  void offer(int peer);
  // When it is not open any more, the offer is over. Error(kPeerLost) when the peer has ended.
  Offered offered(int peer);
  void withdraw(int peer);
  // The other end, for a peer with a ring. Reads some of what lies at `address` there; null when
  // that cannot be done: the offer is refused then. When all has been read, take(); false if the
  // offer is refused instead. Error(kPeerLost) when it was withdrawn.
  std::optional<std::size_t> read_offered(int peer, std::uint64_t address,
                                          std::span<std::byte> into);
  bool take(int peer);

  // To sleep until something of `interests` (of the point-to-point channel) is ready: true when it
  // may be worth it, and sleep() has to follow, and then awake().
  bool prepare_to_sleep(std::span<Interest> interests);
  // As Wire::wait_or_wake().
  void sleep(std::span<Interest> interests, std::optional<std::chrono::milliseconds> limit);
  void awake(std::span<const Interest> interests);
  void wake() { mesh_.wire().wake(); }
  void cancel() { mesh_.wire().cancel(Channel::kPointToPoint); }

 private:
  struct Ring;
  // To and from one peer. Positions count the bytes of all time.
  struct Lane {
    Ring* out = nullptr;  // null: over the wire
    Ring* in = nullptr;
    std::uint64_t written = 0;  // by this rank
    std::uint64_t room_until = 0;
    std::uint64_t taken = 0;  // by this rank
    std::uint64_t filled_until = 0;
    bool is_full = false;                          // send() had more than there was room for
    bool has_offered = false, is_reading = false;  // a payload where it lies
    bool is_closed = false;                        // the peer has ended
  };

  Lane& lane(int peer) { return lanes_[static_cast<std::size_t>(peer)]; }
  const Lane& lane(int peer) const { return lanes_[static_cast<std::size_t>(peer)]; }
  std::size_t room(Lane& lane, std::size_t wanted) const;
  std::size_t filled(int peer, Lane& lane, std::size_t wanted) const;
  void ring_bell(int peer) const;
  bool end_offer(int peer, Lane& lane, DirectRead::End end) const;
  void wake_writer(int peer, Lane& lane) const;
  void hear_bell(int peer, Lane& lane) const;

  Mesh& mesh_;
  const std::unique_ptr<const std::uint64_t> token_;  // by which others know this process's memory
  const RingMemory memory_;
  const std::size_t capacity_;  // of a ring
  std::vector<Lane> lanes_;
};

}  // namespace paceline
