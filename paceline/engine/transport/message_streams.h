#pragma once

// The point-to-point channels of a rank. To ranks of its host, bytes travel through rings in memory
// that both ends map, without a system call; to other ranks, or without such memory, over the wire.
// A rank of the same host can also read large payloads directly from the sender's memory
// (DirectRead).
//
// Each rank's block of memory has a ring for every other rank of the host: that rank writes it, the
// owner of the block reads it. An end that is about to sleep sets its flag in the ring. The other
// end, when it next moves bytes, then writes one byte to the wire's channel, the *bell*. When that
// channel closes, the stream ends after the bytes left in the ring.
//
// Invariants of a ring. Positions count all bytes since the beginning; the byte at position p lies
// at offset p mod capacity.
//
//  1. Each position has one writer: only the writing end changes `written`, and only the reading
//     end changes `taken`. Each end keeps its own position in its Lane and never reads it back, so
//     a peer cannot move it.
//  2. taken <= written <= taken + capacity. The writer advances `written` only over room that it
//     has seen in `taken`; the reader advances `taken` only over bytes that it has seen in
//     `written`.
//  3. Bytes in [taken, written) do not change: the writer stores `written` (release) after it has
//     copied the bytes, and the reader loads `written` (acquire) before it copies them out.
//  4. A byte is overwritten only after it was read: the reader stores `taken` (release) after it
//     has copied the bytes out, and the writer loads `taken` (acquire) before it overwrites them.
//  5. No wake-up is lost. A sleeper stores its flag and then loads the position; the other end, the
//     mover, stores the position and then loads the flag. All four accesses are sequentially
//     consistent, so they have one order, in which one of the two stores comes first: either the
//     sleeper sees the new position and does not sleep, or the mover sees the flag and rings.
//     Acquire and release would not suffice: they let both loads pass the stores before them.
//  6. The mover rings only if its exchange takes the flag from 1 to 0: at most one bell for each
//     sleep. The sleeper clears its flag when it wakes; a bell that was rung meanwhile stays in the
//     channel, and the next sleep hears and ignores it.
//  7. A reader accepts only a `written` that keeps invariant 2; any other value means that the
//     memory is damaged (kCorrupt).
//
// Invariants of an offered payload. Each direction of a pair has one word, `offer_`:
//
//  8. Exactly one compare-and-exchange changes the word from kOffered: the reader's, to kTaken or
//     kRefused, or the sender's, to kWithdrawn. The end that loses sees the value that the other
//     end has stored.
//  9. The sender keeps the payload unchanged until it has seen kTaken or kRefused, or has withdrawn
//     the offer itself.
// 10. A read is valid only if, after it, the sender's token is still at its address and the offer
//     is still open: a process that called exec() has other contents there, and a sender that has
//     withdrawn the offer may have changed the payload.
//
// Thread safety: one thread at a time sends and receives; only wake() and sleep() may be called by
// other threads meanwhile.

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

// Lets a process read a payload directly from the memory of another process of the same host
// (process_vm_readv): one copy, where a ring takes two. The kernel allows it between processes of
// one user, unless configured otherwise (Yama's ptrace_scope, seccomp, another pid namespace): the
// reader tries it first, and records the result.
//
// Each direction of a pair has one DirectRead, in zeroed memory that both processes map. The sender
// offers one payload at a time. If the payload cannot be read (device memory, memfd_secret,
// a process that has withdrawn its permission or has ended), the reader refuses it, and the sender
// has to send it through the ring, where the reader notices if the sender has ended.
class DirectRead {
 public:
  // ---- called by the sender
  // Tells the reader where `token` lies. Requires: `token` is not 0, no other process knows its
  // value, and its address does not change.
  void introduce(const std::uint64_t& token);
  // True once the reader has found that it can read this process's memory.
  bool is_possible() const { return reader_.load(std::memory_order_acquire) == kCan; }
  void offer() { offer_.store(kOffered, std::memory_order_release); }
  bool is_open() const { return offer_.load(std::memory_order_seq_cst) == kOffered; }
  bool is_taken() const { return offer_.load(std::memory_order_seq_cst) == kTaken; }
  bool is_refused() const { return offer_.load(std::memory_order_seq_cst) == kRefused; }
  void withdraw();

  // ---- called by the reader
  // Tries to read the sender's memory, once, after the sender has introduced itself, and records
  // the result.
  void try_once();
  // Returns the number of bytes read; less than 1, and sets errno, if the memory cannot be read.
  ssize_t read(std::uint64_t address, std::span<std::byte> into) const;
  // Ends an offer whose bytes have all been read. Returns kRefused if the sender's process has
  // meanwhile called exec(), kWithdrawn if the sender has withdrawn the offer.
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

// Where the rings of a host's ranks lie: in every rank's block, from `offset` on, which is a
// multiple of 128.
struct RingMemory {
  // Null if there are no rings. Owners: the allocating object, and the streams.
  std::shared_ptr<SharedBlocks> blocks;
  std::size_t offset = 0;
};

class MessageStreams {
 public:
  // Uses rings in `memory`, if there is any, for the ranks of this host. Requires: all of these
  // ranks pass the same zeroed memory, with room for bytes_for() of them; `mesh` outlives this
  // object.
  MessageStreams(Mesh& mesh, RingMemory memory);

  // The number of bytes that the rings of `num_ranks` ranks need in each block; pages may be
  // allocated on touch.
  static std::size_t bytes_for(std::size_t num_ranks);

  // Whether rings lead to `peer` and back; whether the outgoing ring has room for `bytes` bytes
  // now; whether the incoming ring holds at least `bytes` bytes.
  bool has_ring(int peer) const { return lane(peer).in != nullptr; }
  bool has_room(int peer, std::size_t bytes);
  bool has_arrived(int peer, std::size_t bytes);
  // Like the functions of Wire, but peek() returns 0 while a ring is empty.
  ssize_t send(int peer, std::span<const std::byte> head, std::span<const std::byte> rest);
  // Error(kCorrupt) if the bytes are not those that `peer` sent.
  ssize_t receive(int peer, std::span<std::byte> into);
  ssize_t peek(int peer, std::span<std::byte> into);

  // Offers a payload that `peer` reads directly from this process's memory; the caller then sends
  // its address. One offer at a time. The payload must stay unchanged until it is taken, refused or
  // withdrawn.
  enum class Offered { kOpen, kTaken, kRefused };
  bool can_offer(int peer) const;
  void offer(int peer);
  // The state of the offer; kTaken and kRefused are final. Error(kPeerLost) if the peer has ended
  // while the offer is open.
  Offered offered(int peer);
  void withdraw(int peer);
  // The reading end of an offer, for a peer with a ring. read_offered() reads some bytes at
  // `address` of the peer's memory. If that fails, it refuses the offer and returns nullopt.
  // Call take() once all bytes have been read; it returns false if the offer is refused instead.
  // Error(kPeerLost) if the peer has withdrawn the offer.
  std::optional<std::size_t> read_offered(int peer, std::uint64_t address,
                                          std::span<std::byte> into);
  bool take(int peer);

  // Prepares to sleep until one of `interests` (of the point-to-point channel) is ready. If it
  // returns true, the caller must call sleep() and then awake(); if false, something is ready
  // already.
  bool prepare_to_sleep(std::span<Interest> interests);
  // Like Wire::wait_or_wake().
  void sleep(std::span<Interest> interests, std::optional<std::chrono::milliseconds> limit);
  void awake(std::span<const Interest> interests);
  void wake() { mesh_.wire().wake(); }
  void cancel() { mesh_.wire().cancel(Channel::kPointToPoint); }

 private:
  struct Ring;
  // The state of both directions to one peer. Positions count all bytes since the beginning.
  struct Lane {
    Ring* out = nullptr;  // null: bytes travel over the wire
    Ring* in = nullptr;
    std::uint64_t written = 0;       // bytes that this rank has written to `out`
    std::uint64_t room_until = 0;    // `written` may grow up to here
    std::uint64_t taken = 0;         // bytes that this rank has taken from `in`
    std::uint64_t filled_until = 0;  // `taken` may grow up to here
    bool is_full = false;            // the last send() did not fit
    // this rank has offered a payload; this rank is reading a payload that the peer offered
    bool has_offered = false, is_reading = false;
    bool is_closed = false;  // the peer has ended
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
  // A secret value by which peers recognise this process's memory.
  const std::unique_ptr<const std::uint64_t> token_;
  const RingMemory memory_;
  const std::size_t capacity_;  // bytes of a ring
  std::vector<Lane> lanes_;
};

}  // namespace paceline
