#pragma once

// One connection between two workers: frames in both directions over a stream socket that has been
// authenticated, or over rings of shared memory (shm_channel.h) beside it. Nothing here waits,
// except receive() if it is allowed to: what finds no room now is kept and sent later. Small
// messages are copied. Large ones go through memory that the two workers share (shm_channel.h), or
// are sent from where they lie.
//
// Two lanes share the socket. A message of more than kPartBytes travels in parts, and frames of the
// urgent lane (renewals) go between two of them. So signs of life never wait for the end of a
// message.
//
// Thread safety: any thread may send; one at a time may receive.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/rpc/protocol/frame.h"
#include "paceline/engine/rpc/protocol/shm_channel.h"
#include "paceline/engine/transport/cipher.h"

namespace paceline::rpc {

class Connection {
 public:
  // A frame of more than `max_message` bytes breaks the connection before memory is taken for it.
  // Encrypted if there is a cipher. `waits_in_receive`: the socket is made one on which a read()
  // waits. `spin`: for so long, a receive() that may wait looks for what comes through shared
  // memory, before it sleeps.
  Connection(Fd socket, std::unique_ptr<Cipher> cipher, std::size_t max_message,
             bool waits_in_receive, std::chrono::nanoseconds spin = {});
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int socket() const { return socket_.get(); }

  // The caller's end, before anything is sent: from now on both directions go through shared
  // memory, if both ends are on one host and there is some.
  void offer_rings();

  // Appends a frame; flush() sends it. `message` must live as a whole until it was sent or own()
  // was called.
  void queue(const Frame& frame, const OutgoingPointer& message = {});
  // Before everything that was queued.
  void queue_urgent(Frame frame);
  // Sends what the socket takes now. False when the connection is broken.
  bool flush();
  bool has_unsent() const;
  // What epoll reports once there is room for what is unsent.
  std::uint32_t event_of_room() const;
  // Copies what is still to be sent of `message`, whose owner wants its memory back.
  void own(const Outgoing& message);
  // Ends the connection in both directions; receive() returns false soon.
  void shut_down();

  class Receiver {
   public:
    virtual void take(const Frame& frame, Payload payload) = 0;

   protected:
    ~Receiver() = default;
  };
  // Reads what has arrived and passes on every frame that is whole. With a deadline: waits for
  // something until then (and for at most kLongestWait), and reads once. False at the end of the
  // connection, or when it is broken. Error(kCorrupt) for what no worker sends.
  bool receive(Receiver& receiver, const Deadline* deadline = nullptr);
  static constexpr std::chrono::milliseconds kLongestWait{100};
  // As receive(), until nothing is left: for a connection that the other end has closed, because
  // the end may come together with the last bytes, and no event of its own announces it.
  bool receive_to_the_end(Receiver& receiver);
  // For the receiver.
  std::uint64_t bytes_received() const { return bytes_received_; }

 private:
  // What waits to be sent: whole frames, or a part of a large message that is sent from its place.
  struct Piece {
    std::vector<std::byte> bytes;
    std::span<const std::byte> rest;  // of `bytes` or of `message`, unsent
    OutgoingPointer message;
    bool begins_frame = true;
    int descriptor = -1;  // that goes with its first byte
  };
  void append(std::span<const std::byte> bytes);
  void append_place(std::span<const std::byte> bytes, const OutgoingPointer& message);
  void append_message(const OutgoingPointer& message);
  std::optional<AreaPlace> put_into_area(const MessageWriter& message);
  ssize_t send_pieces();
  std::size_t gather(std::span<iovec> pieces) const;
  ssize_t send_through_rings();
  void ring();
  bool take_doorbells(const Deadline* deadline);
  bool receive_through_rings(Receiver& receiver, const Deadline* deadline);
  bool wait_for_data(const Deadline& deadline);
  void take_rings();
  std::span<std::byte> room_for_data();
  void consume_data(std::size_t count, Receiver& receiver);
  ssize_t read(std::span<std::byte> into, Wait wait = Wait::kNo);
  ssize_t wait_and_read(std::span<std::byte> into, const Deadline& deadline);
  void begin_frame(std::span<const std::byte> header, Receiver& receiver);
  std::span<const std::byte> consume(std::span<const std::byte> bytes, Receiver& receiver);
  void finish_message(Receiver& receiver);

  const Fd socket_;
  const std::unique_ptr<Cipher> cipher_;
  const std::size_t max_message_;
  const bool waits_in_receive_, shares_memory_;
  const std::chrono::nanoseconds spin_;

  mutable std::mutex mutex_;  // guards what follows, up to the next comment
  std::deque<Piece> unsent_;
  std::vector<std::byte> spare_;       // memory of a piece that was sent
  std::deque<std::uint64_t> tickets_;  // the last ones that were sent
  std::uint32_t sent_counter_ = 0, sent_urgent_counter_ = 0;
  std::unique_ptr<Rings> rings_;  // set once, before the receiver uses it
  std::unique_ptr<SentArea> area_;
  bool has_no_area_ = false;  // because there was none to be had
  bool is_broken_ = false;

  // The receiver's.
  std::uint64_t bytes_received_ = 0, num_reads_ = 0;
  const std::unique_ptr<std::byte[]> buffer_;  // its pages come as they are used
  std::size_t buffered_ = 0;                   // bytes in it that wait for the rest of their header
  Frame frame_;                                // whose message is being received
  Payload payload_;
  std::size_t received_ = 0;   // of the payload
  std::size_t part_left_ = 0;  // bytes of the payload that come before the next header
  bool in_message_ = false;
  Fd descriptor_;  // that came with what was received last
  std::shared_ptr<ReceivedArea> peers_area_;
  std::uint32_t received_counter_ = 0, received_urgent_counter_ = 0;
};

}  // namespace paceline::rpc
