#include "paceline/engine/rpc/protocol/shm_channel.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <sched.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline::rpc {

// One end stores "I wait" and then loads the position; the other stores the position and then loads
// "I wait". At least one of them must see the other's store, so all accesses except those to
// writer_cpu are sequentially consistent.
struct Rings::Header {
  alignas(64) std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> writer_waits;
  std::atomic<std::int32_t> writer_cpu;  // the core on which the writer last wrote; a hint
  alignas(64) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> reader_waits;
};

namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
constexpr std::size_t kHeaderBytes = 128, kPage = 4096;
constexpr std::size_t kHeaders = kPage;  // one page holds both headers
constexpr std::size_t kFileBytes = kHeaders + 2 * Rings::kBytes;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool take(std::atomic<std::uint32_t>& flag) { return flag.load() != 0 && flag.exchange(0) != 0; }

}  // namespace

std::unique_ptr<Rings> Rings::make() {
  Fd file = make_sealed_file(kFileBytes);
  if (!file) return nullptr;
  Mapping mapping = Mapping::of_file(file, kFileBytes, Pages::kOnTouch);
  if (!mapping || !populate_pages(mapping.data(), kHeaders)) return nullptr;
  for (const std::size_t direction : {0, 1}) {
    auto* header = new (mapping.data() + direction * kHeaderBytes) Header{};
    header->reader_waits = 1;
  }
  return std::unique_ptr<Rings>(new Rings(std::move(file), std::move(mapping), true));
}

std::unique_ptr<Rings> Rings::of_file(Fd file) {
  Mapping mapping;
  if (is_sealed_file(file, kFileBytes)) {
    mapping = Mapping::of_file(file, kFileBytes, Pages::kOnTouch);
  }
  if (!mapping) {
    fail(ErrorCode::kCorrupt, "a worker's shared memory cannot be used: {}", describe_errno(errno));
  }
  return std::unique_ptr<Rings>(new Rings(std::move(file), std::move(mapping), false));
}

Rings::Rings(Fd file, Mapping mapping, bool is_caller)
    : file_(std::move(file)), mapping_(std::move(mapping)) {
  static_assert(sizeof(Header) == kHeaderBytes);
  const auto direction = [&](std::size_t number) {
    std::byte* const header = mapping_.data() + number * kHeaderBytes;
    return Direction{.header = std::launder(reinterpret_cast<Header*>(header)),
                     .bytes = mapping_.data() + kHeaders + number * kBytes};
  };
  out_ = direction(is_caller ? 0 : 1);
  in_ = direction(is_caller ? 1 : 0);
}

// Pages are allocated first, because touching a page for which there is no memory raises SIGBUS.
bool Rings::allocate_out_pages(std::size_t more) {
  const auto end = static_cast<std::size_t>(std::min<std::uint64_t>(out_.position + more, kBytes));
  if (end <= out_.num_present) return true;
  const std::size_t size = round_up(end - out_.num_present, kPage);
  if (!populate_pages(out_.bytes + out_.num_present, size)) return false;
  out_.num_present += size;
  return true;
}

ssize_t Rings::write(std::span<const iovec> pieces) {
  const auto room = [&]() -> std::size_t {
    const std::uint64_t used = out_.position - out_.header->read.load();
    return used < kBytes ? kBytes - used : 0;
  };
  std::size_t left = room();
  if (left == 0) {
    out_.header->writer_waits = 1;
    left = room();
    if (left == 0) return 0;
    out_.header->writer_waits = 0;
  }
  std::size_t wanted = 0;
  for (const iovec& piece : pieces) wanted += piece.iov_len;
  if (!allocate_out_pages(std::min(wanted, left))) return -1;
  std::size_t count = 0;
  for (const iovec& piece : pieces) {
    const auto* from = static_cast<const std::byte*>(piece.iov_base);
    const std::size_t size = std::min(piece.iov_len, left);
    const std::size_t at = (out_.position + count) % kBytes;
    const std::size_t first = std::min(size, kBytes - at);
    std::memcpy(out_.bytes + at, from, first);
    std::memcpy(out_.bytes, from + first, size - first);
    count += size;
    left -= size;
    if (left == 0) break;
  }
  out_.position += count;
  out_.header->writer_cpu.store(::sched_getcpu(), std::memory_order_relaxed);
  out_.header->written = out_.position;
  return static_cast<ssize_t>(count);
}

bool Rings::must_ring_reader() { return take(out_.header->reader_waits); }

bool Rings::has_data() const { return in_.header->written.load() != in_.position; }

std::size_t Rings::read(std::span<std::byte> into) {
  const std::uint64_t there = in_.header->written.load() - in_.position;
  if (there > kBytes)
    fail(ErrorCode::kCorrupt, "a worker wrote an invalid position to its shared memory");
  const std::size_t count = std::min<std::size_t>(there, into.size());
  if (count == 0) return 0;
  const std::size_t at = in_.position % kBytes;
  const std::size_t first = std::min(count, kBytes - at);
  std::memcpy(into.data(), in_.bytes + at, first);
  std::memcpy(into.data() + first, in_.bytes, count - first);
  in_.position += count;
  in_.header->read = in_.position;
  return count;
}

bool Rings::must_ring_writer() {
  if (in_.header->writer_waits.load() == 0) return false;
  const std::uint64_t left = in_.header->written.load() - in_.position;
  return left <= kBytes / 2 && take(in_.header->writer_waits);
}

bool Rings::wait_for_data() {
  in_.header->reader_waits = 1;
  return !has_data();
}

void Rings::cancel_wait() { in_.header->reader_waits = 0; }

bool Rings::writer_shares_core() const {
  return in_.header->writer_cpu.load(std::memory_order_relaxed) == ::sched_getcpu();
}

namespace {

// The header at the beginning of a block; the message follows.
struct BlockHeader {
  static constexpr std::uint32_t kGiven = 0x4e564947, kFree = 0x45455246;
  alignas(64) std::atomic<std::uint32_t> state;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::size_t kBlockUnit = sizeof(BlockHeader);
constexpr std::size_t kReserveUnit = std::size_t{1} << 20;

BlockHeader& header_at(std::byte* area, std::size_t offset) {
  return *std::launder(reinterpret_cast<BlockHeader*>(area + offset));
}

}  // namespace

std::unique_ptr<SentArea> SentArea::make() {
  Fd file = make_sealed_file(kAreaBytes);
  if (!file) return nullptr;
  Mapping mapping = Mapping::of_file(file, kAreaBytes, Pages::kOnTouch);
  if (!mapping) return nullptr;
  return std::unique_ptr<SentArea>(new SentArea(std::move(file), std::move(mapping)));
}

void SentArea::take_back_free_blocks() {
  std::erase_if(given_, [&](const auto& block) {
    return header_at(mapping_.data(), block.first).state.load(std::memory_order_acquire) ==
           BlockHeader::kFree;
  });
}

std::optional<AreaPlace> SentArea::put(const MessageWriter& message) {
  take_back_free_blocks();
  const std::size_t bytes = round_up(sizeof(BlockHeader) + message.size(), kBlockUnit);
  // Takes the first gap that fits, so that few pages are used.
  std::size_t offset = 0;
  for (const auto& [begin, size] : given_) {
    if (begin - offset >= bytes) break;
    offset = begin + size;
  }
  if (bytes > kAreaBytes - offset) return {};
  if (const std::size_t end = offset + bytes; end > reserved_) {
    const std::size_t wanted = std::min(round_up(end, kReserveUnit), kAreaBytes);
    if (!reserve_file(file_.get(), wanted)) return {};
    reserved_ = wanted;
  }
  auto* header = new (mapping_.data() + offset) BlockHeader;
  header->state.store(BlockHeader::kGiven, std::memory_order_relaxed);
  std::byte* to = mapping_.data() + offset + sizeof(BlockHeader);
  message.copy_to(to);
  given_.emplace(offset, bytes);
  return AreaPlace{offset, message.size()};
}

ReceivedArea::ReceivedArea(const Fd& file) {
  if (is_sealed_file(file, kAreaBytes)) {
    mapping_ = Mapping::of_file(file, kAreaBytes, Pages::kOnTouch);
  }
  if (!mapping_) {
    fail(ErrorCode::kCorrupt, "a worker's shared memory cannot be used: {}", describe_errno(errno));
  }
}

Payload ReceivedArea::take(const AreaPlace& place) {
  const bool is_inside = place.offset % kBlockUnit == 0 && place.offset < kAreaBytes &&
                         place.size <= kAreaBytes - sizeof(BlockHeader) - place.offset;
  if (!is_inside || header_at(mapping_.data(), place.offset).state.load() != BlockHeader::kGiven) {
    fail(
        ErrorCode::kCorrupt,
        "a worker announced a message at offset {} of its shared memory, but there is none at that "
        "offset",
        place.offset);
  }
  std::shared_ptr<const std::byte> bytes(
      mapping_.data() + place.offset + sizeof(BlockHeader),
      [self = shared_from_this(), offset = place.offset](const std::byte*) {
        header_at(self->mapping_.data(), offset)
            .state.store(BlockHeader::kFree, std::memory_order_release);
      });
  return {std::move(bytes), place.size};
}

}  // namespace paceline::rpc
