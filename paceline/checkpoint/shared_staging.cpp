#include "paceline/checkpoint/shared_staging.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include "paceline/checkpoint/digest.h"
#include "paceline/checkpoint/row_major.h"
#include "paceline/core/check.h"
#include "paceline/core/copy.h"
#include "paceline/core/log.h"

namespace paceline {
namespace {

// Tensors begin on cache lines, and shares end there, so that no line is written by two ranks.
constexpr std::size_t kLine = 64;

std::size_t lines_of(std::size_t bytes) { return (bytes + kLine - 1) / kLine; }

std::size_t whole_bytes(const NamedTensor& tensor) {
  std::size_t bytes = size_of(tensor.dtype);
  for (const auto size : tensor.shape) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

std::size_t staged_bytes(std::span<const HeldTensor> tensors) {
  std::size_t lines = 0;
  for (const HeldTensor& held : tensors) lines += lines_of(whole_bytes(held.tensor));
  return lines * kLine;
}

// What each rank says before a save.
struct Offer {
  std::array<char, 32> digest{};
  bool shares_memory = false;
  bool has_room = false;
};

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& elements) {
  return std::as_bytes(std::span(elements));
}

// Of what must be the same on all ranks: the layout, and of each replica two cache lines.
std::array<char, 32> digest_of_replicas(std::span<const HeldTensor> tensors) {
  Digest digest;
  for (const auto& [tensor, by, first, strides] : tensors) {
    const std::array<std::uint64_t, 4> sizes = {tensor.name.size(), tensor.shape.size(),
                                                static_cast<std::uint64_t>(tensor.dtype),
                                                static_cast<std::uint64_t>(by)};
    digest.update(std::as_bytes(std::span(sizes)));
    digest.update(std::as_bytes(std::span(tensor.name)));
    digest.update(bytes_of(tensor.shape));
    digest.update(bytes_of(strides));
    if (by != HeldTensor::By::kAll) continue;
    const auto half = tensor.bytes.subspan(tensor.bytes.size() / 2);
    digest.update(tensor.bytes.first(std::min(kLine, tensor.bytes.size())));
    digest.update(half.first(std::min(kLine, half.size())));
  }
  std::array<char, 32> hex{};
  std::ranges::copy(digest.hex(), hex.begin());
  return hex;
}

void require_held(std::span<const HeldTensor> tensors, int rank) {
  for (const auto& [tensor, by, first, strides] : tensors) {
    const std::size_t whole = whole_bytes(tensor);
    const std::size_t size = tensor.bytes.size();
    const bool fits = by == HeldTensor::By::kAll || (by == HeldTensor::By::kRoot && rank == 0)
                          ? size == whole
                          : size <= whole && first <= whole - size;
    check(fits, "rank {}: of tensor \"{}\", {} bytes, it gives {} bytes from byte {} on", rank,
          tensor.name, whole, size, first);
  }
}

// Of the bytes that this rank holds of a tensor, those that it copies.
struct Part {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The replicas' lines, one tensor after the other, divided evenly.
class Shares {
 public:
  Shares(std::span<const HeldTensor> tensors, int rank, int num_ranks) : is_root_(rank == 0) {
    std::size_t lines = 0;
    for (const HeldTensor& held : tensors) {
      if (held.by == HeldTensor::By::kAll) lines += lines_of(whole_bytes(held.tensor));
    }
    const auto n = static_cast<std::size_t>(num_ranks);
    const auto r = static_cast<std::size_t>(rank);
    begin_ = lines * r / n;
    end_ = lines * (r + 1) / n;
  }

  // Of the next tensor.
  Part next(const HeldTensor& held) {
    const std::size_t size = held.tensor.bytes.size();
    if (held.by == HeldTensor::By::kOwners) return {0, size};
    if (held.by == HeldTensor::By::kRoot) return {0, is_root_ ? size : 0};
    const std::size_t at = at_;
    at_ += lines_of(size);
    const auto inside = [&](std::size_t line) {
      return line <= at ? 0 : std::min(size, (line - at) * kLine);
    };
    return {inside(begin_), inside(end_)};
  }

 private:
  const bool is_root_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t at_ = 0;  // line of the next replica
};

// A lack of memory shows here and not as a signal later. Linux before 5.14 cannot, and brings the
// pages with the first copy.
void bring_pages(std::byte* memory, std::size_t bytes) {
  if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL) return;
  throw system_error(fmt::format("no memory for a copy of the checkpoint ({} bytes)", bytes));
}

}  // namespace

SharedStaging::SharedStaging(std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)), ranks_(group_->hosts().neighbours(0)) {
  if (ranks_.size() < 2) return;
  const bool is_one_host = ranks_.size() == static_cast<std::size_t>(group_->world_size());
  sharers_ = is_one_host ? group_ : group_->new_group(ranks_);
  if (!is_sharer()) return;
  const int another = sharers_->rank() == 0 ? 1 : 0;
  shares_memory_ = sharers_->reserve_symmetric(1).of(another) != nullptr;
  if (!shares_memory_ && group_->rank() == 0) {
    log::info("checkpoints: the ranks of this host share no memory; rank 0 copies by itself");
  }
}

bool SharedStaging::includes(std::span<const int> world_ranks) const {
  return std::ranges::all_of(world_ranks, [&](int wanted) {
    return std::ranges::any_of(ranks_, [&](int rank) {
      return group_->world_ranks()[static_cast<std::size_t>(rank)] == wanted;
    });
  });
}

void SharedStaging::say_once(const std::string& why) {
  if (group_->rank() != 0 || said_) return;
  said_ = true;
  log::warning(fmt::format(
      "checkpoints: {}; rank 0 copies the whole state by itself, which takes longer", why));
}

bool SharedStaging::stage(std::span<const HeldTensor> tensors) {
  if (sharers_ == nullptr) return false;
  require_held(tensors, group_->rank());
  const std::size_t bytes = staged_bytes(tensors);
  if (!agree(tensors, bytes)) return false;
  if (!is_sharer()) return true;
  copy_share(tensors, bytes);
  sharers_->barrier();
  return true;
}

// Collective over the group: every rank gets the answer.
bool SharedStaging::agree(std::span<const HeldTensor> tensors, std::size_t bytes) {
  const Offer mine{digest_of_replicas(tensors), shares_memory_, bytes <= memory_.bytes()};
  std::vector<Offer> all(static_cast<std::size_t>(group_->world_size()));
  group_->all_gather(ConstBuffer(&mine, sizeof mine, Dtype::kUint8),
                     Buffer(all.data(), all.size() * sizeof mine, Dtype::kUint8));
  const Offer& root = all[0];
  if (!root.shares_memory) return false;
  for (const int rank : ranks_) {
    if (all[static_cast<std::size_t>(rank)].digest == root.digest) continue;
    say_once(fmt::format("the parameters or the optimizer of rank {} differ from rank 0's", rank));
    return false;
  }
  return root.has_room || reserve(bytes);
}

// Collective over the group.
bool SharedStaging::reserve(std::size_t bytes) {
  std::int32_t has_room = 1;
  try {
    memory_ = {};
    if (is_sharer()) memory_ = sharers_->reserve_symmetric(bytes);
    if (group_->rank() == 0) bring_pages(memory_.data(), bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;
    has_room = 0;
    say_once(error.what());
  }
  group_->all_reduce(std::span(&has_room, 1), ReduceOp::kMin);
  if (has_room == 0) {
    memory_ = {};
    shares_memory_ = false;
  }
  return has_room == 1;
}

void SharedStaging::copy_share(std::span<const HeldTensor> tensors, std::size_t bytes) const {
  const bool past_caches = bytes > last_level_cache_bytes();
  Shares shares(tensors, sharers_->rank(), sharers_->world_size());
  std::byte* place = memory_.data() == nullptr ? nullptr : memory_.of(0);
  for (const HeldTensor& held : tensors) {
    const auto [begin, end] = shares.next(held);
    const auto run = held.tensor.bytes.subspan(begin, end - begin);
    const std::size_t first = held.first + begin;
    if (!run.empty() && !held.strides.empty()) {
      copy_to_row_major(place, run, first, size_of(held.tensor.dtype), held.tensor.shape,
                        held.strides);
    } else if (!run.empty() && past_caches) {
      copy_past_caches(place + first, run.data(), run.size());
    } else if (!run.empty()) {
      std::memcpy(place + first, run.data(), run.size());
    }
    place += lines_of(whole_bytes(held.tensor)) * kLine;
  }
}

std::vector<NamedTensor> SharedStaging::staged(std::span<const HeldTensor> tensors) const {
  std::vector<NamedTensor> staged;
  const std::byte* place = memory_.data();
  for (const HeldTensor& held : tensors) {
    const std::size_t bytes = whole_bytes(held.tensor);
    staged.push_back(held.tensor);
    staged.back().bytes = {place, bytes};
    place += lines_of(bytes) * kLine;
  }
  return staged;
}

}  // namespace paceline
