#include "paceline/engine/rpc/area.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/transport/sealed_file.h"

namespace paceline::rpc {
namespace {

// At the beginning of a block; the message follows.
struct BlockHeader {
  static constexpr std::uint32_t kGiven = 0x4e564947, kFree = 0x45455246;
  alignas(64) std::atomic<std::uint32_t> state;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::size_t kBlockUnit = sizeof(BlockHeader);
constexpr std::size_t kReserveUnit = std::size_t{1} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

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
  // The first gap, so that few pages are used.
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
    fail(ErrorCode::kCorrupt, "a worker sent a message at {} of its shared memory, where none lies",
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
