#include "paceline/engine/transport/message_streams.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <random>

#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

void DirectRead::introduce(const std::uint64_t& token) {
  pid_ = getpid();
  token_at_ = std::bit_cast<std::uintptr_t>(&token);
  token_.store(token, std::memory_order_release);
}

void DirectRead::withdraw() {
  std::uint32_t expected = kOffered;
  offer_.compare_exchange_strong(expected, kWithdrawn);
}

void DirectRead::try_once() {
  if (reader_.load(std::memory_order_relaxed) != kUnknown) return;
  if (token_.load(std::memory_order_acquire) == 0) return;
  reader_.store(sees_token() ? kCan : kCannot, std::memory_order_release);
}

bool DirectRead::sees_token() const {
  std::uint64_t seen = 0;
  return read(token_at_, std::as_writable_bytes(std::span(&seen, 1))) == sizeof seen &&
         seen == token_.load(std::memory_order_relaxed);
}

ssize_t DirectRead::read(std::uint64_t address, std::span<std::byte> into) const {
  const iovec local = {into.data(), into.size()};
  const iovec remote = {std::bit_cast<void*>(static_cast<std::uintptr_t>(address)), into.size()};
  return process_vm_readv(static_cast<pid_t>(pid_), &local, 1, &remote, 1, 0);
}

DirectRead::End DirectRead::take() { return sees_token() ? end(kTaken) : refuse(true); }

DirectRead::End DirectRead::refuse(bool is_final) {
  if (is_final) reader_.store(kCannot, std::memory_order_release);
  return end(kRefused);
}

DirectRead::End DirectRead::end(Offer how) {
  std::uint32_t expected = kOffered;
  if (!offer_.compare_exchange_strong(expected, how)) return End::kWithdrawn;
  return how == kTaken ? End::kTaken : End::kRefused;
}

namespace {

constexpr std::size_t kMaxCapacity = 256 << 10;  // stays in a core's L2 cache
constexpr std::size_t kMinCapacity = 4 << 10;
// The most memory of a rank's rings, unless there are very many ranks.
constexpr std::size_t kMaxBlockBytes = 4 << 20;
// A position is published after at most this many bytes, so that the other end can continue.
constexpr std::size_t kPieceBytes = 16 << 10;
// The most bytes of an offered payload that are read before the other peers get their turn.
constexpr std::size_t kPieceOfOffer = 256 << 10;

std::uint64_t random_token() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random() | 1;
}

std::size_t capacity_for(std::size_t num_ranks) {
  return std::clamp(std::bit_floor(kMaxBlockBytes / num_ranks), kMinCapacity, kMaxCapacity);
}

}  // namespace

// The head of a ring; its `capacity_` bytes follow. Each end reads the other end's flag for every
// message. The flags change only when a thread sleeps, and the positions change all the time, so
// flags and positions do not share a cache line.
struct MessageStreams::Ring {
  alignas(128) std::atomic<std::uint64_t> written;  // stored by the writing end only
  alignas(128) std::atomic<std::uint64_t> taken;    // stored by the reading end only
  alignas(128) std::atomic<std::uint32_t> writer_sleeps;
  alignas(128) std::atomic<std::uint32_t> reader_sleeps;
  alignas(128) DirectRead direct;

  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};

MessageStreams::MessageStreams(Mesh& mesh, RingMemory memory)
    : mesh_(mesh),
      token_(std::make_unique<const std::uint64_t>(random_token())),
      memory_(std::move(memory)),
      capacity_(capacity_for(mesh.neighbours().size())),
      lanes_(static_cast<std::size_t>(mesh.world_size())) {
  if (!memory_.blocks) return;
  const auto& ranks = mesh_.neighbours();
  const auto ring = [&](int reader, std::size_t writer) {
    std::byte* const place =
        memory_.blocks->of(reader) + memory_.offset + writer * (sizeof(Ring) + capacity_);
    return reinterpret_cast<Ring*>(place);
  };
  const auto self =
      static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), mesh_.rank()) - ranks.begin());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == self) continue;
    lane(ranks[i]).out = ring(ranks[i], self);
    lane(ranks[i]).in = ring(mesh_.rank(), i);
    lane(ranks[i]).room_until = capacity_;
    lane(ranks[i]).out->direct.introduce(*token_);
  }
}

std::size_t MessageStreams::bytes_for(std::size_t num_ranks) {
  return num_ranks * (sizeof(Ring) + capacity_for(num_ranks));
}

// The number of bytes for which the ring has room. Loads the peer's position only if the position
// seen last leaves too little room.
std::size_t MessageStreams::room(Lane& lane, std::size_t wanted) const {
  if (lane.room_until - lane.written < wanted) {
    lane.room_until = lane.out->taken.load(std::memory_order_acquire) + capacity_;
  }
  return lane.room_until - lane.written;
}

std::size_t MessageStreams::filled(int peer, Lane& lane, std::size_t wanted) const {
  if (lane.filled_until - lane.taken < wanted) {
    lane.filled_until = lane.in->written.load(std::memory_order_acquire);
    if (lane.filled_until - lane.taken > capacity_) {
      fail(ErrorCode::kCorrupt, "{}: the shared memory through which {} sends is corrupt",
           mesh_.self(), mesh_.describe(peer));
    }
  }
  return lane.filled_until - lane.taken;
}

bool MessageStreams::has_room(int peer, std::size_t bytes) {
  Lane& lane = this->lane(peer);
  return lane.out != nullptr && !lane.is_closed && room(lane, bytes) >= bytes;
}

bool MessageStreams::has_arrived(int peer, std::size_t bytes) {
  Lane& lane = this->lane(peer);
  return lane.in != nullptr && filled(peer, lane, bytes) >= bytes;
}

ssize_t MessageStreams::send(int peer, std::span<const std::byte> head,
                             std::span<const std::byte> rest) {
  Lane& lane = this->lane(peer);
  if (lane.out == nullptr) return mesh_.wire().send(peer, Channel::kPointToPoint, head, rest);
  if (lane.is_closed) {
    errno = EPIPE;
    return -1;
  }
  const std::uint64_t begin = lane.written;
  std::uint64_t shown = begin;
  const auto show = [&] {
    lane.out->written.store(shown = lane.written, std::memory_order_seq_cst);  // invariants 3, 5
    if (lane.out->reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
        lane.out->reader_sleeps.exchange(0) != 0) {
      ring_bell(peer);
    }
  };
  while (!head.empty() || !rest.empty()) {
    auto& part = head.empty() ? rest : head;
    const std::size_t at = lane.written & (capacity_ - 1);
    const std::size_t wanted = std::min({part.size(), kPieceBytes, capacity_ - at});
    const std::size_t count = std::min(room(lane, wanted), wanted);
    if (count == 0) break;
    std::memcpy(lane.out->data() + at, part.data(), count);
    lane.written += count;
    const bool is_rest = head.empty();
    part = part.subspan(count);
    if (is_rest) show();  // show the head together with the bytes that follow it
  }
  if (shown != lane.written) show();
  lane.is_full = !head.empty() || !rest.empty();
  if (lane.written != begin) return static_cast<ssize_t>(lane.written - begin);
  errno = EAGAIN;
  return -1;
}

ssize_t MessageStreams::receive(int peer, std::span<std::byte> into) {
  Lane& lane = this->lane(peer);
  if (lane.in == nullptr) return mesh_.receive(peer, Channel::kPointToPoint, into);
  lane.in->direct.try_once();
  const std::uint64_t begin = lane.taken;
  while (!into.empty()) {
    const std::size_t at = lane.taken & (capacity_ - 1);
    const std::size_t wanted = std::min({into.size(), kPieceBytes, capacity_ - at});
    const std::size_t count = std::min(filled(peer, lane, wanted), wanted);
    if (count == 0) break;
    std::memcpy(into.data(), lane.in->data() + at, count);
    into = into.subspan(count);
    lane.taken += count;
    lane.in->taken.store(lane.taken, std::memory_order_seq_cst);  // invariants 4, 5
    wake_writer(peer, lane);
  }
  if (lane.taken != begin) return static_cast<ssize_t>(lane.taken - begin);
  if (lane.is_closed) return 0;
  errno = EAGAIN;
  return -1;
}

ssize_t MessageStreams::peek(int peer, std::span<std::byte> into) {
  Lane& lane = this->lane(peer);
  if (lane.in == nullptr) return mesh_.wire().peek(peer, Channel::kPointToPoint, into);
  const std::size_t count = std::min(filled(peer, lane, into.size()), into.size());
  for (std::size_t i = 0; i < count; ++i)
    into[i] = lane.in->data()[(lane.taken + i) & (capacity_ - 1)];
  return static_cast<ssize_t>(count);
}

bool MessageStreams::can_offer(int peer) const {
  const Lane& lane = this->lane(peer);
  return lane.out != nullptr && lane.out->direct.is_possible();
}

void MessageStreams::offer(int peer) {
  lane(peer).has_offered = true;
  lane(peer).out->direct.offer();
}

MessageStreams::Offered MessageStreams::offered(int peer) {
  Lane& lane = this->lane(peer);
  const DirectRead& direct = lane.out->direct;
  const Offered how = direct.is_taken()     ? Offered::kTaken
                      : direct.is_refused() ? Offered::kRefused
                                            : Offered::kOpen;
  if (how != Offered::kOpen) {
    lane.has_offered = false;
  } else if (lane.is_closed) {
    mesh_.throw_lost(peer, "is gone, and has not received a message");
  }
  return how;
}

void MessageStreams::withdraw(int peer) { lane(peer).out->direct.withdraw(); }

std::optional<std::size_t> MessageStreams::read_offered(int peer, std::uint64_t address,
                                                        std::span<std::byte> into) {
  Lane& lane = this->lane(peer);
  const ssize_t got =
      lane.in->direct.read(address, into.first(std::min(into.size(), kPieceOfOffer)));
  lane.is_reading = got > 0;
  if (got > 0) return static_cast<std::size_t>(got);
  end_offer(peer, lane, lane.in->direct.refuse(errno != EFAULT));
  return {};
}

bool MessageStreams::take(int peer) {
  Lane& lane = this->lane(peer);
  lane.is_reading = false;
  return end_offer(peer, lane, lane.in->direct.take());
}

bool MessageStreams::end_offer(int peer, Lane& lane, DirectRead::End end) const {
  if (end == DirectRead::End::kWithdrawn) {
    mesh_.throw_lost(peer, "gave up in the middle of a message");
  }
  wake_writer(peer, lane);
  return end == DirectRead::End::kTaken;
}

bool MessageStreams::prepare_to_sleep(std::span<Interest> interests) {
  bool is_ready = false;
  for (Interest& interest : interests) {
    Lane& lane = this->lane(interest.peer);
    if (lane.out == nullptr) continue;
    if ((interest.events & POLLIN) != 0) {
      lane.in->reader_sleeps.store(1, std::memory_order_seq_cst);  // invariant 5
      is_ready |= lane.is_reading || lane.in->written.load(std::memory_order_seq_cst) != lane.taken;
    }
    if ((interest.events & POLLOUT) != 0) {
      lane.out->writer_sleeps.store(1, std::memory_order_seq_cst);
      const bool has_room =
          lane.out->taken.load(std::memory_order_seq_cst) + capacity_ != lane.written;
      is_ready |= has_room && (lane.is_full || !lane.has_offered);
      is_ready |= lane.has_offered && !lane.out->direct.is_open();
    }
    is_ready |= lane.is_closed;
    interest.events = POLLIN;  // the bell is a byte on the wire's channel
  }
  if (is_ready) awake(interests);
  return !is_ready;
}

void MessageStreams::sleep(std::span<Interest> interests,
                           std::optional<std::chrono::milliseconds> limit) {
  mesh_.wire().wait_or_wake(interests, limit);
}

void MessageStreams::awake(std::span<const Interest> interests) {
  for (const Interest& interest : interests) {
    Lane& lane = this->lane(interest.peer);
    if (lane.out == nullptr) continue;
    lane.in->reader_sleeps.store(0, std::memory_order_relaxed);
    lane.out->writer_sleeps.store(0, std::memory_order_relaxed);
    if (interest.is_ready) hear_bell(interest.peer, lane);
  }
}

void MessageStreams::wake_writer(int peer, Lane& lane) const {
  if (lane.in->writer_sleeps.load(std::memory_order_seq_cst) != 0 &&
      lane.in->writer_sleeps.exchange(0) != 0) {
    ring_bell(peer);
  }
}

// Errors are ignored: a full channel already holds enough bells, and a closed one needs none.
void MessageStreams::ring_bell(int peer) const {
  const std::byte bell{};
  Interest room{peer, Channel::kPointToPoint, POLLOUT};
  while (mesh_.wire().send(peer, Channel::kPointToPoint, {&bell, 1}, {}) < 0 &&
         would_block(errno)) {
    mesh_.wire().wait({&room, 1}, std::chrono::milliseconds(0));
    if (!room.is_ready) return;
  }
}

void MessageStreams::hear_bell(int peer, Lane& lane) const {
  std::array<std::byte, 64> bells;
  ssize_t count = 0;
  do {
    count = mesh_.wire().receive(peer, Channel::kPointToPoint, bells);
  } while (count > 0);
  lane.is_closed |= count == 0 || !would_block(errno);
}

}  // namespace paceline
