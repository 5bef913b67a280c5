#include "paceline/engine/rpc/protocol/connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/rpc/protocol/frame.h"

namespace paceline::rpc {

namespace {

constexpr std::size_t kReceiveBytes = 64 << 10;
constexpr std::size_t kCopied = 16 << 10;      // longer messages are sent without a copy
constexpr std::size_t kBlockBytes = 64 << 10;  // a block of small frames that are sent together
constexpr std::size_t kMaxTickets = 1 << 16;   // tickets that may be on their way at a time
constexpr std::size_t kMaxPieces = 64;         // for one sendmsg(), well below the kernel's 1,024
constexpr std::array<std::byte, 1> kDoorbell{};
// A thread that waits for shared memory spins briefly before it sleeps if that has helped lately:
// a call then takes a tenth of the time, if each end has a core to itself. Two ends on one core
// yield it to each other, which is faster than sleeping and lets the kernel move one of them to an
// idle core. After a few misses in a row the thread spins only at every n-th wait, so computing
// threads lose almost no time; the longer a yielded core was away, the larger n is. If several
// frames came together, the thread sleeps immediately at the next wait, since the next frames are
// then likely to come together as well.
constexpr std::chrono::microseconds kShortSpin(50);
constexpr int kMaxMisses = 4;
constexpr int kFirstTrial = 64, kLastTrial = 4096;  // waits between trials, doubled by each miss

bool is_unix(const Fd& socket) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
         domain == AF_UNIX;
}

}  // namespace

Connection::Connection(Fd socket, std::unique_ptr<Cipher> cipher, std::size_t max_message,
                       bool waits_in_receive, std::chrono::nanoseconds spin)
    : socket_(std::move(socket)),
      cipher_(std::move(cipher)),
      max_message_(max_message),
      waits_in_receive_(waits_in_receive && !cipher_),
      shares_memory_(!cipher_ && is_unix(socket_)),
      spin_(spin),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kReceiveBytes)) {
  if (!waits_in_receive_) return;
  const timeval limit{.tv_sec = 0, .tv_usec = std::chrono::microseconds(kLongestWait).count()};
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
      ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) & ~O_NONBLOCK) != 0) {
    throw system_error("preparing a connection between workers");
  }
}

Connection::~Connection() {
  for (const std::uint64_t ticket : tickets_) LocalMessages::discard(ticket);
}

void Connection::offer_rings() {
  if (!shares_memory_) return;
  auto rings = Rings::make();
  if (!rings) return;
  const auto frame = encode({.kind = FrameKind::kRings});
  const int descriptor = rings->descriptor();
  const std::lock_guard lock(mutex_);
  // Nothing has been sent yet, so the socket takes the whole frame.
  if (send_with_descriptors(socket_.get(), frame, std::span(&descriptor, 1)) ==
      static_cast<ssize_t>(frame.size())) {
    rings_ = std::move(rings);
    ++sent_counter_;
  } else {
    is_broken_ = true;
  }
}

// Appends bytes; small pieces share blocks. Requires: the mutex is held.
void Connection::append(std::span<const std::byte> bytes) {
  const bool fits = !unsent_.empty() && !unsent_.back().message &&
                    unsent_.back().bytes.size() + bytes.size() <= unsent_.back().bytes.capacity();
  if (!fits) {
    Piece piece{.bytes = std::exchange(spare_, {}), .rest = {}, .message = {}};
    piece.bytes.clear();
    piece.bytes.reserve(std::max(kBlockBytes, bytes.size()));
    unsent_.push_back(std::move(piece));
  }
  Piece& piece = unsent_.back();
  const std::size_t sent = piece.bytes.size() - piece.rest.size();
  piece.bytes.insert(piece.bytes.end(), bytes.begin(), bytes.end());
  piece.rest = std::span(piece.bytes).subspan(sent);
}

void Connection::append_place(std::span<const std::byte> bytes, const OutgoingPointer& message) {
  if (bytes.empty()) return;
  unsent_.push_back({.bytes = {}, .rest = bytes, .message = message, .begins_frame = false});
}

// Appends a large message without copying its bytes, with a header before every part.
void Connection::append_message(const OutgoingPointer& message) {
  const MessageWriter& out = message->writer();
  const bool in_parts = out.size() > kPartBytes;
  std::size_t left = out.size(), part_left = in_parts ? 0 : left;
  const auto append_piece = [&](std::span<const std::byte> piece) {
    while (!piece.empty()) {
      if (part_left == 0) {
        part_left = std::min(left, kPartBytes);
        const auto header = encode({.kind = FrameKind::kPart,
                                    .counter = sent_counter_++,
                                    .length = static_cast<std::uint32_t>(part_left)});
        unsent_.push_back({.bytes = {header.begin(), header.end()}, .rest = {}, .message = {}});
        unsent_.back().rest = unsent_.back().bytes;
      }
      const std::size_t count = std::min(part_left, piece.size());
      append_place(piece.first(count), message);
      piece = piece.subspan(count);
      part_left -= count;
      left -= count;
    }
  };
  const std::span<const std::byte> bytes(out.bytes());
  std::size_t begin = 0;
  for (const auto& part : out.parts()) {
    append_piece(bytes.subspan(begin, part.offset - begin));
    append_piece(part.data);
    begin = part.offset;
  }
  append_piece(bytes.subspan(begin));
}

// Copies a message into shared memory; nullopt if it must go through the rings or the socket.
// Requires: the mutex is held.
std::optional<AreaPlace> Connection::put_into_area(const MessageWriter& message) {
  if (!shares_memory_ || has_no_area_ || message.size() <= kCopied) return {};
  if (!area_) {
    area_ = SentArea::make();
    has_no_area_ = area_ == nullptr;
    if (has_no_area_) return {};
    const auto header = encode({.kind = FrameKind::kArea, .counter = sent_counter_++});
    unsent_.push_back({.bytes = {header.begin(), header.end()},
                       .rest = {},
                       .message = {},
                       .descriptor = area_->descriptor()});
    unsent_.back().rest = unsent_.back().bytes;
  }
  return area_->put(message);
}

void Connection::queue(const Frame& given, const OutgoingPointer& message) {
  const std::lock_guard lock(mutex_);
  if (is_broken_) return;
  Frame frame = given;
  if (const auto place = message ? put_into_area(message->writer()) : std::nullopt) {
    frame.counter = sent_counter_++;
    frame.flags |= Frame::kInArea;
    frame.length = sizeof *place;
    append(encode(frame));
    return append(std::as_bytes(std::span(&*place, 1)));
  }
  frame.counter = sent_counter_++;
  if (!message) return append(encode(frame));
  if (message->is_for_self()) {
    frame.flags |= Frame::kInMemory;
    const std::uint64_t ticket = LocalMessages::keep(message);
    tickets_.push_back(ticket);
    if (tickets_.size() > kMaxTickets) tickets_.pop_front();
    frame.length = sizeof ticket;
    append(encode(frame));
    return append(std::as_bytes(std::span(&ticket, 1)));
  }
  const MessageWriter& out = message->writer();
  frame.length = static_cast<std::uint32_t>(out.size());
  if (out.size() > kPartBytes) frame.flags |= Frame::kInParts;
  append(encode(frame));
  if (out.parts().empty() && out.size() <= kCopied) return append(out.bytes());
  append_message(message);
}

void Connection::queue_urgent(Frame frame) {
  const std::lock_guard lock(mutex_);
  if (is_broken_) return;
  frame.flags |= Frame::kUrgent;
  frame.counter = sent_urgent_counter_++;
  // An urgent frame goes between two frames, after a piece that may have been sent in part.
  auto place = unsent_.begin();
  if (place != unsent_.end()) ++place;
  while (place != unsent_.end() && !place->begins_frame) ++place;
  if (place == unsent_.end()) return append(encode(frame));
  const auto header = encode(frame);
  const auto urgent = unsent_.insert(
      place, Piece{.bytes = {header.begin(), header.end()}, .rest = {}, .message = {}});
  urgent->rest = urgent->bytes;
}

// Sends as many pieces as one call takes. Requires: the mutex is held, and something is unsent.
ssize_t Connection::send_pieces() {
  Piece& first = unsent_.front();
  if (cipher_) return cipher_->send(socket_.get(), {}, first.rest);
  if (rings_) return send_through_rings();
  if (first.descriptor >= 0) {
    const ssize_t sent =
        send_with_descriptors(socket_.get(), first.rest, std::span(&first.descriptor, 1));
    if (sent > 0) first.descriptor = -1;
    return sent;
  }
  std::array<iovec, kMaxPieces> pieces;
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = gather(pieces);
  return send_message(socket_.get(), message);
}

// Gathers the pieces that one call can send.
std::size_t Connection::gather(std::span<iovec> pieces) const {
  std::size_t count = 0;
  for (const Piece& piece : unsent_) {
    if (count == pieces.size() || piece.descriptor >= 0) break;
    pieces[count++] = {const_cast<std::byte*>(piece.rest.data()), piece.rest.size()};
  }
  return count;
}

ssize_t Connection::send_through_rings() {
  if (int& descriptor = unsent_.front().descriptor; descriptor >= 0) {
    if (send_with_descriptors(socket_.get(), kDoorbell, std::span(&descriptor, 1)) < 0) return -1;
    descriptor = -1;
  }
  std::array<iovec, kMaxPieces> pieces;
  const ssize_t count = rings_->write(std::span(pieces).first(gather(pieces)));
  if (count < 0) return count;
  if (rings_->must_ring_reader()) ring();
  if (count > 0) return count;
  errno = EAGAIN;
  return -1;
}

// If the socket has no room for the doorbell, it is full of doorbells that the other end has not
// read yet.
void Connection::ring() { send_some(socket_.get(), kDoorbell); }

bool Connection::flush() {
  const std::lock_guard lock(mutex_);
  while (!is_broken_ && !unsent_.empty()) {
    const ssize_t result = send_pieces();
    if (result < 0) {
      if (errno == EAGAIN) break;
      is_broken_ = true;
      unsent_.clear();
      break;
    }
    auto sent = static_cast<std::size_t>(result);
    while (!unsent_.empty() && sent >= unsent_.front().rest.size()) {
      sent -= unsent_.front().rest.size();
      if (!unsent_.front().message) spare_ = std::move(unsent_.front().bytes);
      unsent_.pop_front();
    }
    if (sent > 0) unsent_.front().rest = unsent_.front().rest.subspan(sent);
  }
  return !is_broken_;
}

bool Connection::has_unsent() const {
  const std::lock_guard lock(mutex_);
  return !unsent_.empty();
}

std::uint32_t Connection::event_of_room() const {
  const std::lock_guard lock(mutex_);
  return rings_ ? EPOLLIN : EPOLLOUT;
}

void Connection::own(const Outgoing& message) {
  const std::lock_guard lock(mutex_);
  for (Piece& piece : unsent_) {
    if (piece.message.get() != &message) continue;
    piece.bytes = std::vector<std::byte>(piece.rest.begin(), piece.rest.end());
    piece.rest = piece.bytes;
    piece.message.reset();
  }
}

void Connection::shut_down() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  const std::lock_guard lock(mutex_);
  is_broken_ = true;
  unsent_.clear();
}

void Connection::begin_frame(std::span<const std::byte> header, Receiver& receiver) {
  const Frame frame = decode_frame(std::span<const std::byte, kFrameBytes>(header));
  const bool is_urgent = (frame.flags & Frame::kUrgent) != 0;
  std::uint32_t& counter = is_urgent ? received_urgent_counter_ : received_counter_;
  if (frame.counter != counter++) {
    fail(ErrorCode::kCorrupt, "a worker sent frame {} instead of frame {}", frame.counter,
         counter - 1);
  }
  if (is_urgent) {
    if (frame.length != 0)
      fail(ErrorCode::kCorrupt, "a worker sent an urgent frame with a message");
    ++num_frames_;
    return receiver.take(frame, {});
  }
  if (frame.kind == FrameKind::kRings) return take_rings();
  if (frame.kind == FrameKind::kArea) {
    if (rings_ && !descriptor_) take_doorbells(nullptr);  // the descriptor comes with a doorbell
    if (!descriptor_ || peers_area_ || in_message_ || frame.length != 0) {
      fail(ErrorCode::kCorrupt, "a worker sent unexpected shared memory");
    }
    peers_area_ = std::make_shared<ReceivedArea>(std::exchange(descriptor_, Fd()));
    return;
  }
  if (frame.kind == FrameKind::kPart) {
    if (!in_message_ || frame.length == 0 || frame.length > frame_.length - received_) {
      fail(ErrorCode::kCorrupt, "a worker sent a part of {} bytes outside of a message",
           frame.length);
    }
    part_left_ = frame.length;
    return;
  }
  if (in_message_) fail(ErrorCode::kCorrupt, "a worker began a frame within a message");
  if (frame.length > max_message_) {
    fail(ErrorCode::kCorrupt, "a worker sent a message of {} bytes; the limit is {}", frame.length,
         max_message_);
  }
  frame_ = frame;
  payload_ = Payload(frame.length);
  received_ = 0;
  in_message_ = true;
  part_left_ = (frame.flags & Frame::kInParts) != 0 ? 0 : frame.length;
  if (frame.length == 0) finish_message(receiver);
}

void Connection::take_rings() {
  const std::lock_guard lock(mutex_);
  if (!descriptor_ || rings_ || received_counter_ != 1 || sent_counter_ != 0) {
    fail(ErrorCode::kCorrupt, "a worker sent unexpected rings of shared memory");
  }
  rings_ = Rings::of_file(std::exchange(descriptor_, Fd()));
}

void Connection::finish_message(Receiver& receiver) {
  in_message_ = false;
  if ((frame_.flags & Frame::kInMemory) != 0) {
    std::uint64_t ticket = 0;
    if (payload_.bytes().size() != sizeof ticket) {
      fail(ErrorCode::kCorrupt, "a worker sent a ticket of {} bytes", payload_.bytes().size());
    }
    std::memcpy(&ticket, payload_.bytes().data(), sizeof ticket);
    payload_ = Payload(LocalMessages::take(ticket));
  }
  if ((frame_.flags & Frame::kInArea) != 0) {
    AreaPlace place;
    if (!peers_area_ || payload_.bytes().size() != sizeof place) {
      fail(ErrorCode::kCorrupt, "a worker sent a message in shared memory that it never shared");
    }
    std::memcpy(&place, payload_.bytes().data(), sizeof place);
    if (place.size > max_message_) {
      fail(ErrorCode::kCorrupt, "a worker sent a message of {} bytes; the limit is {}", place.size,
           max_message_);
    }
    payload_ = peers_area_->take(place);
  }
  ++num_frames_;
  receiver.take(frame_, std::move(payload_));
}

// Consumes complete headers and their messages, and returns the rest, which is shorter than a
// header.
std::span<const std::byte> Connection::consume(std::span<const std::byte> bytes,
                                               Receiver& receiver) {
  for (;;) {
    if (part_left_ == 0) {
      if (bytes.size() < kFrameBytes) return bytes;
      const bool had_rings = rings_ != nullptr;
      begin_frame(bytes.first(kFrameBytes), receiver);
      if (!had_rings && rings_) return {};  // doorbells follow
      bytes = bytes.subspan(kFrameBytes);
      continue;
    }
    if (bytes.empty()) return bytes;
    const std::size_t count = std::min(part_left_, bytes.size());
    std::memcpy(payload_.bytes().data() + received_, bytes.data(), count);
    received_ += count;
    part_left_ -= count;
    bytes = bytes.subspan(count);
    if (received_ == frame_.length) finish_message(receiver);
  }
}

ssize_t Connection::read(std::span<std::byte> into, Wait wait) {
  const ssize_t got = [&] {
    if (shares_memory_) {
      return receive_with_descriptors(socket_.get(), into, std::span(&descriptor_, 1), wait).bytes;
    }
    if (wait == Wait::kYes) return read_some(socket_.get(), into);
    return receive_on(socket_.get(), cipher_.get(), into);
  }();
  if (got > 0) ++num_reads_;
  return got;
}

bool Connection::receive_to_the_end(Receiver& receiver) {
  std::uint64_t before = 0;
  do {
    before = num_reads_;
    if (!receive(receiver)) return false;
  } while (num_reads_ != before);
  return true;
}

ssize_t Connection::wait_and_read(std::span<std::byte> into, const Deadline& deadline) {
  // If the deadline is beyond the socket's own limit, a blocking read saves the call of poll().
  if (waits_in_receive_ && deadline.remaining() >= kLongestWait) {
    return read(into, Wait::kYes);
  }
  const ssize_t there = cipher_ ? read(into) : -1;  // the cipher may hold decrypted bytes
  if (there >= 0 || (cipher_ && errno != EAGAIN)) return there;
  pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (poll_for(std::span(&entry, 1),
               std::chrono::milliseconds(deadline.poll_timeout_ms(kLongestWait))) < 0) {
    return -1;
  }
  return read(into);
}

// The room for received bytes: the rest of a large message is received directly into its payload,
// everything else into the buffer.
std::span<std::byte> Connection::room_for_data() {
  if (part_left_ >= kReceiveBytes && buffered_ == 0) {
    return payload_.bytes().subspan(received_, part_left_);
  }
  return std::span(buffer_.get(), kReceiveBytes).subspan(buffered_);
}

// Takes `count` bytes that have arrived in room_for_data().
void Connection::consume_data(std::size_t count, Receiver& receiver) {
  bytes_received_ += count;
  if (part_left_ >= kReceiveBytes && buffered_ == 0) {
    received_ += count;
    part_left_ -= count;
    if (received_ == frame_.length) finish_message(receiver);
    return;
  }
  const auto rest = consume(std::span(buffer_.get(), buffered_ + count), receiver);
  buffered_ = rest.size();
  if (buffered_ > 0) std::memmove(buffer_.get(), rest.data(), buffered_);
}

bool Connection::receive(Receiver& receiver, const Deadline* deadline) {
  while (!rings_) {
    const auto into = room_for_data();
    const ssize_t got = deadline != nullptr ? wait_and_read(into, *deadline) : read(into);
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    const auto count = static_cast<std::size_t>(got);
    consume_data(count, receiver);
    // A read that returned less than requested has emptied the socket, so no further read is
    // needed. This does not hold for a cipher, which returns one record at a time.
    if (!rings_ && (deadline != nullptr || (count < into.size() && !cipher_))) return true;
  }
  return receive_through_rings(receiver, deadline);
}

// ---- through shared memory ----

bool Connection::receive_through_rings(Receiver& receiver, const Deadline* deadline) {
  const bool is_open = deadline != nullptr ? wait_for_data(*deadline) : take_doorbells(nullptr);
  const auto frames_before = num_frames_;
  do {
    while (const std::size_t count = rings_->read(room_for_data())) {
      if (rings_->must_ring_writer()) ring();
      consume_data(count, receiver);
    }
  } while (!rings_->wait_for_data());
  comes_in_batches_ = num_frames_ > frames_before + 1;
  return is_open;
}

// Waits for data in the rings until the deadline; returns false at the end of the connection.
bool Connection::wait_for_data(const Deadline& deadline) {
  if (rings_->has_data()) return true;
  if (spin_ > std::chrono::nanoseconds(0)) {
    spin(deadline, spin_);
  } else if (!comes_in_batches_) {
    spin_if_worthwhile(deadline);
  }
  if (!rings_->wait_for_data()) return true;
  return take_doorbells(&deadline);
}

void Connection::spin_if_worthwhile(const Deadline& deadline) {
  if (misses_ >= kMaxMisses && ++waits_since_trial_ < trial_interval_) return;
  waits_since_trial_ = 0;
  const auto [saw_data, late] = spin(deadline, kShortSpin);
  if (late > std::chrono::nanoseconds(0)) {
    misses_ = kMaxMisses;
    trial_interval_ = static_cast<int>(
        std::clamp<std::int64_t>(late / std::chrono::microseconds(1), kFirstTrial, kLastTrial));
  } else if (saw_data) {
    misses_ = 0;
    trial_interval_ = kFirstTrial;
  } else if (++misses_ > kMaxMisses) {
    trial_interval_ = std::min(trial_interval_ * 2, kLastTrial);
  }
}

Connection::SpinEnd Connection::spin(const Deadline& deadline, std::chrono::nanoseconds limit) {
  rings_->cancel_wait();
  const auto begin = std::chrono::steady_clock::now();
  limit = std::min(limit, std::chrono::nanoseconds(deadline.remaining()));
  bool has_yielded = false;
  while (!rings_->has_data() && std::chrono::steady_clock::now() - begin < limit) {
    if (rings_->writer_shares_core()) {
      has_yielded = true;
      std::this_thread::yield();
    } else {
      spin_pause();
    }
  }
  const std::chrono::nanoseconds none(0);
  const auto late =
      has_yielded ? std::max(std::chrono::steady_clock::now() - begin - limit, none) : none;
  return {.saw_data = rings_->has_data(), .late = late};
}

void Connection::look_without_bell() {
  if (rings_) rings_->cancel_wait();
}

// Reads the doorbells that have arrived; with a deadline it waits for one. Returns false at the end
// of the connection.
bool Connection::take_doorbells(const Deadline* deadline) {
  std::array<std::byte, 256> doorbells;
  const ssize_t got = deadline != nullptr ? wait_and_read(doorbells, *deadline) : read(doorbells);
  if (got < 0) return errno == EAGAIN;
  flush();  // a doorbell may mean that the other end has made room
  return got > 0;
}

}  // namespace paceline::rpc
