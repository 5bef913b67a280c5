#include "paceline/engine/collectives/backends/paceline/symmetric_regions.h"

#include <algorithm>
#include <string>

#include <xxhash.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

namespace {

// Whether a rank has announced memory in the region, and so has not freed it; true if there is no
// region.
bool holds(const Announcement& announcement, std::int64_t region) {
  return region < 0 || announcement.input.region == region || announcement.output.region == region;
}

}  // namespace

std::shared_ptr<SharedBlocks> SymmetricRegions::allocate(std::size_t bytes, Pages pages,
                                                         Deadline deadline) {
  auto blocks = mesh_.shared_memory()->allocate(bytes, pages, deadline);
  const std::string& name = mesh_.name();
  const auto number = XXH3_64bits_withSeed(name.data(), name.size(), num_allocations_++);
  registry_->add({static_cast<std::int64_t>(number >> 1), mesh_.members(), blocks});
  return blocks;
}

// Copies the registry's entries that cover this group.
void SymmetricRegions::refresh() {
  const std::uint64_t version = registry_->version();
  if (version == seen_) return;
  seen_ = version;
  regions_.clear();
  for (const auto& [number, members, owner] : registry_->entries()) {
    const auto blocks = owner.lock();
    Region region{number, owner, blocks ? blocks->bytes() : 0, {}};
    for (const int member : mesh_.members()) {
      const auto at = std::find(members.begin(), members.end(), member);
      if (at == members.end() || !blocks) break;
      region.bases.push_back(blocks->of(static_cast<int>(at - members.begin())));
    }
    if (region.bases.size() == mesh_.members().size()) regions_.push_back(std::move(region));
  }
}

BufferLocation SymmetricRegions::find(const void* data, std::size_t bytes) {
  if (data == nullptr) return {-2, 0};
  refresh();
  const auto* begin = static_cast<const std::byte*>(data);
  for (const Region& region : regions_) {
    if (region.owner.expired()) continue;
    const std::byte* base = region.of(mesh_.rank());
    if (begin >= base && begin + bytes <= base + region.bytes)
      return {region.number, static_cast<std::uint64_t>(begin - base)};
  }
  return {};
}

// The region with this number; null if this rank has freed it, or never had it.
const SymmetricRegions::Region* SymmetricRegions::region(std::int64_t number) const {
  for (const Region& region : regions_) {
    if (region.number == number) return region.owner.expired() ? nullptr : &region;
  }
  return nullptr;
}

Announcement SymmetricRegions::announcement_for(const SharedOperation& operation) {
  const auto& call = operation.call;
  const int rank = mesh_.rank();
  const int world = mesh_.world_size();
  return {operation.fingerprint,
          find(call.input, input_count(call, rank, world) * operation.element),
          find(call.output, output_count(call, rank, world) * operation.element)};
}

bool SymmetricRegions::hold_all(const SharedOperation& operation,
                                std::span<const Announcement> announced) const {
  std::int64_t input_region = -2;
  std::int64_t output_region = -2;
  const auto agrees = [](std::int64_t& common, std::int64_t region) {
    if (region == -2) return true;
    if (common == -2) common = region;
    return region >= 0 && region == common;
  };
  for (const auto& announcement : announced) {
    if (!agrees(input_region, announcement.input.region) ||
        !agrees(output_region, announcement.output.region))
      return false;
  }
  // In a gather only the root has an output, so the other ranks may have freed its region.
  const bool output_is_shared = operation.call.op != Op::kGather;
  for (const auto& announcement : announced) {
    if (!holds(announcement, input_region) ||
        (output_is_shared && !holds(announcement, output_region)))
      return false;
  }
  require_inside(operation, announced);
  return operation.call.count > 0;
}

void SymmetricRegions::require_inside(const SharedOperation& operation,
                                      std::span<const Announcement> announced) const {
  const auto& call = operation.call;
  for (int rank = 0; rank < mesh_.world_size(); ++rank) {
    const auto& announcement = announced[static_cast<std::size_t>(rank)];
    const auto fits = [&](const BufferLocation& place, std::size_t count) {
      if (place.region < 0) return true;
      const Region* held = region(place.region);
      const std::size_t bytes = count * operation.element;
      // This rank may have freed the region of another rank's gather output, which it never uses.
      if (held == nullptr) return call.op == Op::kGather && rank != mesh_.rank();
      return bytes <= held->bytes && place.offset <= held->bytes - bytes;
    };
    if (!fits(announcement.input, input_count(call, rank, mesh_.world_size())) ||
        !fits(announcement.output, output_count(call, rank, mesh_.world_size()))) {
      fail(ErrorCode::kCorrupt, "{}: {} announced buffers of {} that lie outside its memory",
           mesh_.self(), mesh_.describe(rank), operation.fingerprint.describe());
    }
  }
}

}  // namespace paceline
