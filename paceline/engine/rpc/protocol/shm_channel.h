#pragma once

// Shared memory between workers of one host: rings for the bytes of a connection (Rings), and areas
// for large messages, which travel by reference (SentArea, ReceivedArea).
//
// The bytes of a connection go through two rings, one for each direction. The caller makes them and
// sends their descriptor over the socket (kRings). From then on the socket carries only descriptors
// and doorbells: single bytes that make the other end check its ring again.
//
// The rules of ringing:
//
//  1. A reader that finds no data sets a flag (wait_for_data()) and checks once more. A writer that
//     then sees the flag rings once. A reader that is awake or spins costs no system call.
//  2. A writer that finds no room sets a flag in the same way. The reader rings as soon as half of
//     the ring is free.
//  3. The end of the socket is the end of the connection; bytes that were written to a ring before
//     that are still read.
//
// Each end keeps its own position in private memory and checks the position that it reads from the
// other end, so an end that breaks the rules harms only its connection.
//
// Thread safety: one thread at a time may write, and one may read.

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
  static constexpr std::size_t kBytes = 64 << 10;  // the size of the ring of one direction

  // Makes the caller's end; null if the system has no memory to share.
  static std::unique_ptr<Rings> make();
  // Makes the callee's end. Throws Error(kCorrupt) for a short or unsealed file.
  static std::unique_ptr<Rings> of_file(Fd file);

  int descriptor() const { return file_.get(); }

  // Copies as many bytes as there is room for. If it returns 0, the reader knows that the writer
  // waits for room. Returns -1 with errno if the system has no memory for the ring, whose pages are
  // allocated when they are first written.
  ssize_t write(std::span<const iovec> pieces);
  // Whether the reader waits, so that the writer must ring. Call it after writing.
  bool must_ring_reader();

  bool has_data() const;
  // Copies the bytes that have arrived. Throws Error(kCorrupt) if the writer breaks the rules.
  std::size_t read(std::span<std::byte> into);
  // Whether the writer waits for room and now has some, so that the reader must ring. Call it after
  // reading.
  bool must_ring_writer();
  // Makes the writer ring after its next write. Returns false if data has already arrived.
  bool wait_for_data();
  // Tells the writer that it need not ring any more.
  void cancel_wait();
  // Whether the writer last wrote on the core that runs this thread. A reader that spins must then
  // yield the core, because the writer may be waiting for it.
  bool writer_shares_core() const;

 private:
  struct Header;
  struct Direction {
    Header* header = nullptr;
    std::byte* bytes = nullptr;
    std::uint64_t position = 0;   // the position of this end, in bytes since the beginning
    std::size_t num_present = 0;  // bytes whose pages the writer has allocated
  };
  Rings(Fd file, Mapping mapping, bool is_caller);
  bool allocate_out_pages(std::size_t more);

  const Fd file_;
  const Mapping mapping_;
  Direction out_, in_;
};

// Large messages between workers of one host go by reference: the sender copies a message into an
// area of shared memory, and the receiver reads the message there, for any length of time. Each end
// of a connection makes its own area when it first sends a large message, and sends the area's
// descriptor over the socket.
//
// An area consists of blocks, each with a header. The ownership of a block:
//
//  1. The sender alone decides where blocks are, and keeps their offsets in private memory. In the
//     area it reads only the states of the blocks that it has sent.
//  2. Once a block has been sent it belongs to the receiver, until the receiver stores kFree in its
//     header (release; the sender's load acquires, so all reads of the block happen before its
//     memory is written again).
//  3. Pages are reserved before they are written, so that a lack of memory raises no SIGBUS; the
//     message then goes through the rings or the socket, as it does when the area is full.
//  4. The sender drops an area at the end of its connection. Messages that the receiver still reads
//     stay mapped in the receiver, and the sender never writes to them again.
//
// Thread safety: none for one object, but a Payload may be destroyed on any thread.

// The position of a message in the area, as sent to the other end.
struct AreaPlace {
  std::uint64_t offset = 0;  // where the block begins
  std::uint64_t size = 0;    // bytes of the message
};

inline constexpr std::size_t kAreaBytes = std::size_t{64} << 20;

class SentArea {
 public:
  // Makes an area; null if the system has no memory to share.
  static std::unique_ptr<SentArea> make();

  int descriptor() const { return file_.get(); }
  // Copies a message into the area; nullopt if there is no room.
  std::optional<AreaPlace> put(const MessageWriter& message);

 private:
  SentArea(Fd file, Mapping mapping) : file_(std::move(file)), mapping_(std::move(mapping)) {}
  void take_back_free_blocks();

  const Fd file_;
  const Mapping mapping_;
  std::size_t reserved_ = 0;                    // bytes at the beginning that have pages
  std::map<std::size_t, std::size_t> given_{};  // blocks that were sent: offset and size
};

class ReceivedArea : public std::enable_shared_from_this<ReceivedArea> {
 public:
  // Throws Error(kCorrupt) for a file that is not an area.
  explicit ReceivedArea(const Fd& file);

  // A message that the other end has put into the area. Throws Error(kCorrupt) for a place without
  // a message.
  Payload take(const AreaPlace& place);

 private:
  Mapping mapping_;
};

}  // namespace paceline::rpc
