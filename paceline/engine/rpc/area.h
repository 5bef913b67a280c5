#pragma once

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

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "paceline/engine/core/fd.h"
#include "paceline/engine/rpc/message.h"
#include "paceline/engine/rpc/outgoing.h"
#include "paceline/engine/transport/mapping.h"

namespace paceline::rpc {

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
