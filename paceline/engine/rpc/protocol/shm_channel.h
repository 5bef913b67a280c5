#pragma once

// Shared memory between workers of one host: rings for the bytes of a connection (Rings), and areas
// for large messages, which travel by reference (SentArea, ReceivedArea).
//
// The bytes of a connection go through two rings, one for each direction. The caller makes them and
// hands them over the socket (kRings), which then carries doorbells only: single bytes that say
// "look again", and descriptors.
//
// Who rings:
//
//  1. A reader that found nothing says so (wait_for_data()), and looks once more. The writer that
//     sees it afterwards rings, once. A reader that is awake, or spins, costs no system call.
//  2. A writer that found no room says so, in the same way. The reader rings once half of the ring
//     is free.
//  3. The end of the socket is the end of the connection; what was written before is still read.
//
// Each end keeps its own position in memory of its own, and checks what it reads of the other's, so
// an end that breaks the rules harms only its connection.
//
// Thread safety: one thread at a time writes, and one reads.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include <sys/uio.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/rpc/protocol/frame.h"
#include "paceline/engine/rpc/protocol/message.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline::rpc {

class Rings {
 public:
  static constexpr std::size_t kBytes = 64 << 10;  // that one direction has room for

  // The caller's end. Null if the system has no memory to share.
  static std::unique_ptr<Rings> make();
  // The callee's. Error(kCorrupt) for a file that has no rings.
  static std::unique_ptr<Rings> of_file(Fd file);

  int descriptor() const { return file_.get(); }

  // Copies what there is room for; 0 if there is none, of which the reader then knows. -1 and errno
  // if the system has no memory for the ring, whose pages are allocated as its first lap needs
  // them.
  ssize_t write(std::span<const iovec> pieces);
  // Whether the reader waits, to be asked after writing: a doorbell is due.
  bool must_ring_reader();

  bool has_data() const;
  // Copies what is there. Error(kCorrupt) if the writer breaks the rules.
  std::size_t read(std::span<std::byte> into);
  // Whether the writer waits for room that there is now, to be asked after reading.
  bool must_ring_writer();
  // From now on the writer rings. False if something is there already.
  bool wait_for_data();
  // From now on it does not.
  void do_not_wait();

 private:
  struct Header;
  struct Direction {
    Header* header = nullptr;
    std::byte* bytes = nullptr;
    std::uint64_t position = 0;   // of this end, in bytes from the beginning
    std::size_t num_present = 0;  // bytes whose pages the writer has allocated
  };
  Rings(Fd file, Mapping mapping, bool is_caller);
  bool bring_out_pages(std::size_t more);

  const Fd file_;
  const Mapping mapping_;
  Direction out_, in_;
};

// Large messages between workers of one host go by reference: the sender copies one into an area of
// shared memory, and the receiver reads it there, as long as its program likes. Each end of a
// connection makes its own area when it first sends a large message, and hands it over the socket.
//
// An area consists of blocks, each with a header. Who owns a block:
//
//  1. The sender alone decides where blocks are, and keeps that in memory of its own. It reads
//     nothing from the area but the states of the blocks that it has given away.
//  2. From its sending on, a block is the receiver's, until that stores kFree in its header
//     (release; the sender's load acquires, so all reads come before the memory is written again).
//  3. Pages are reserved before they are written, so a lack of memory is no SIGBUS: the message
//     then goes through the socket, as it does when the area is full.
//  4. An area ends with its connection. What the receiver still reads stays mapped there, and the
//     sender never writes into it again.
//
// Thread safety: none for one object, but a Payload may end on any thread.

// Where a message lies, as it travels.
struct AreaPlace {
  std::uint64_t offset = 0;  // of the block
  std::uint64_t size = 0;    // of the message
};

inline constexpr std::size_t kAreaBytes = std::size_t{64} << 20;

class SentArea {
 public:
  // Null if the system has none.
  static std::unique_ptr<SentArea> make();

  int descriptor() const { return file_.get(); }
  // Copies a message there. Nothing if there is no room.
  std::optional<AreaPlace> put(const MessageWriter& message);

 private:
  SentArea(Fd file, Mapping mapping) : file_(std::move(file)), mapping_(std::move(mapping)) {}
  void take_back_free_blocks();

  const Fd file_;
  const Mapping mapping_;
  std::size_t reserved_ = 0;                    // bytes that have pages
  std::map<std::size_t, std::size_t> given_{};  // blocks that were sent: offset and size
};

class ReceivedArea : public std::enable_shared_from_this<ReceivedArea> {
 public:
  // Error(kCorrupt) for a file that is no area.
  explicit ReceivedArea(const Fd& file);

  // A message that the other end has put there. Error(kCorrupt) for a place that it has not.
  Payload take(const AreaPlace& place);

 private:
  Mapping mapping_;
};

}  // namespace paceline::rpc
