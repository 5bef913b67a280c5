#pragma once

// One connection between two workers: frames in both directions over a stream socket that has been
// authenticated, or over rings of shared memory (shm_channel.h) that accompany the socket. Only
// receive() waits, and only with a deadline; bytes that find no room are kept and sent later. Small
// messages are copied. Large ones go through memory that the two workers share (shm_channel.h), or
// are sent without a copy.
//
// Two lanes share the socket. A message of more than kPartBytes travels in parts, and frames of the
// urgent lane (renewals) are sent between two parts. So a sign of life never waits for the end of a
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
  // A frame of more than `max_message` bytes breaks the connection before memory is allocated for
  // it. With a cipher the connection is encrypted; without one, `waits_in_receive` makes the socket
  // blocking. `spin` is how long a receive() that may wait polls the shared memory before it
  // sleeps; 0: for a short time, while that helps.
  Connection(Fd socket, std::unique_ptr<Cipher> cipher, std::size_t max_message,
             bool waits_in_receive, std::chrono::nanoseconds spin = {});
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int socket() const { return socket_.get(); }

  // The caller's end calls this before anything is sent. If both ends are on one host and memory is
  // available, both directions then go through shared memory.
  void offer_rings();

  // Appends a frame; flush() sends the frame. The memory to which `message` refers must live until
  // the message has been sent, or until own() or shut_down() has returned.
  void queue(const Frame& frame, const OutgoingPointer& message = {});
  // Inserts an urgent frame at the first frame boundary after the piece that is being sent.
  void queue_urgent(Frame frame);
  // Sends as much as the socket takes now. Returns false when the connection is broken.
  bool flush();
  bool has_unsent() const;
  // The event that epoll reports once there is room for unsent bytes.
  std::uint32_t event_of_room() const;
  // Copies the unsent part of `message`; the memory to which the message refers can then be reused.
  void own(const Outgoing& message);
  // Ends the connection in both directions and drops unsent frames; receive() soon returns false.
  void shut_down();

  class Receiver {
   public:
    virtual void take(const Frame& frame, Payload payload) = 0;

   protected:
    ~Receiver() = default;
  };
  // Reads the bytes that have arrived and passes every complete frame to the receiver. With a
  // deadline it waits for bytes, until the deadline but at most for kLongestWait, and reads once,
  // or empties the rings. Returns false when the connection has ended or is broken.
  // Throws Error(kCorrupt) for bytes that no worker sends.
  bool receive(Receiver& receiver, const Deadline* deadline = nullptr);
  static constexpr std::chrono::milliseconds kLongestWait{100};
  // Like receive(), but reads until nothing is left. Use it for a connection that the other end has
  // closed: the end may arrive together with the last bytes, without an event of its own.
  bool receive_to_the_end(Receiver& receiver);
  // Call this if the receiving thread is about to call receive() with a deadline again: the other
  // end then sends no doorbell (shm_channel.h) before that, not even for the next message.
  void look_without_bell();
  // Only the receiving thread may call this.
  std::uint64_t bytes_received() const { return bytes_received_; }

 private:
  // Bytes that wait to be sent: whole frames, or a part of a large message that is sent without a
  // copy.
  struct Piece {
    std::vector<std::byte> bytes;
    std::span<const std::byte> rest;  // the unsent bytes of `bytes` or `message`
    OutgoingPointer message;
    bool begins_frame = true;
    int descriptor = -1;  // sent with the first byte; -1: none
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
  struct SpinEnd {
    bool saw_data = false;
    std::chrono::nanoseconds late{};  // the time beyond the limit, if the thread yielded its core
  };
  void spin_if_worthwhile(const Deadline& deadline);
  SpinEnd spin(const Deadline& deadline, std::chrono::nanoseconds limit);
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

  mutable std::mutex mutex_;  // guards the members from here to is_broken_
  std::deque<Piece> unsent_;
  std::vector<std::byte> spare_;       // memory of a sent piece, to be reused
  std::deque<std::uint64_t> tickets_;  // the last tickets that were sent (LocalMessages)
  std::uint32_t sent_counter_ = 0, sent_urgent_counter_ = 0;
  std::unique_ptr<Rings> rings_;  // set once, before the receiving thread uses it
  std::unique_ptr<SentArea> area_;
  bool has_no_area_ = false;  // the system had no memory for an area
  bool is_broken_ = false;

  // The members below belong to the receiving thread.
  std::uint64_t bytes_received_ = 0, num_reads_ = 0, num_frames_ = 0;
  int misses_ = 0;  // short spins in a row that saw no data
  int waits_since_trial_ = 0, trial_interval_ = 0;
  bool comes_in_batches_ = false;              // the last wait brought several frames
  const std::unique_ptr<std::byte[]> buffer_;  // its pages are allocated on first use
  std::size_t buffered_ = 0;                   // bytes of an incomplete header in buffer_
  Frame frame_;                                // the frame whose message is being received
  Payload payload_;
  std::size_t received_ = 0;   // bytes of the payload received so far
  std::size_t part_left_ = 0;  // bytes of the payload before the next header
  bool in_message_ = false;
  Fd descriptor_;  // arrived with the last bytes
  std::shared_ptr<ReceivedArea> peers_area_;
  std::uint32_t received_counter_ = 0, received_urgent_counter_ = 0;
};

}  // namespace paceline::rpc
