#include "paceline/files/checkpoint/box_plan.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline {

namespace {

// A box of at least kCutBytes and two dimensions is cut along dimension 1 into 4 columns, or into 8
// from kBytesOfMany on, if that number divides the size of dimension 1. Each column becomes a box
// of its own. A rank that wants only some columns, as with tensor parallelism, then reads
// contiguous bytes.
constexpr std::uint64_t kCutBytes = 1 << 20;
constexpr std::uint64_t kBytesOfMany = 8 << 20;

// All boxes of one tensor that ranks hold.
struct Held {
  Dtype dtype;
  std::vector<std::int64_t> shape;
  int rank;  // the first rank that knows of the tensor
  std::map<Box, std::vector<BoxHolder>> boxes;
};
using HeldByName = std::map<std::string, Held>;

HeldByName by_name(const std::vector<std::vector<HeldBox>>& held) {
  HeldByName tensors;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    for (std::size_t i = 0; i < held[rank].size(); ++i) {
      const HeldBox& one = held[rank][i];
      const int number = static_cast<int>(rank);
      Held& tensor =
          tensors.try_emplace(one.name, Held{one.dtype, one.shape, number, {}}).first->second;
      check(tensor.dtype == one.dtype && tensor.shape == one.shape,
            "checkpoint: tensor \"{}\" is {} on rank {} and {} on rank {}", one.name,
            describe(tensor.dtype, tensor.shape), tensor.rank, describe(one.dtype, one.shape),
            rank);
      check(one.box.sizes.size() == one.shape.size(),
            "checkpoint: the box {} of tensor \"{}\" on rank {} needs {} dimensions",
            to_string(one.box), one.name, rank, one.shape.size());
      if (num_elements(one.box) == 0) continue;
      auto& holders = tensor.boxes[one.box];
      if (holders.empty() || holders.back().rank != number) holders.push_back({number, i});
    }
  }
  return tensors;
}

// Returns disjoint boxes. Ranks that divide a tensor differently, such as two stages of a pipeline
// that both have the embedding, hold some elements in several boxes; such an element stays only in
// the first of them.
std::vector<std::pair<Box, std::vector<BoxHolder>>> disjoint_boxes(const Held& tensor) {
  std::vector<std::pair<Box, std::vector<BoxHolder>>> boxes(tensor.boxes.begin(),
                                                            tensor.boxes.end());
  std::int64_t held = 0;
  for (const auto& [box, holders] : boxes) held += num_elements(box);
  if (held <= num_elements(tensor.shape)) return boxes;
  std::vector<std::pair<Box, std::vector<BoxHolder>>> result;
  for (const auto& [box, holders] : boxes) {
    std::vector<Box> rest = {box};
    for (const auto& [taken, others] : std::span(result).first(result.size())) {
      std::vector<Box> left;
      for (const Box& one : rest) std::ranges::move(without(one, taken), std::back_inserter(left));
      rest = std::move(left);
    }
    for (Box& one : rest) result.emplace_back(std::move(one), holders);
  }
  return result;
}

// The holders that can write; the first holder when none can.
std::vector<BoxHolder> writers_among(const std::vector<BoxHolder>& holders,
                                     const std::vector<bool>& writes) {
  std::vector<BoxHolder> able;
  for (const BoxHolder& holder : holders) {
    if (writes[static_cast<std::size_t>(holder.rank)]) able.push_back(holder);
  }
  return able.empty() ? std::vector<BoxHolder>{holders.front()} : able;
}

// Common boxes with the same writers.
struct Share {
  std::vector<std::size_t> boxes;  // indices in BoxPlan::common
  std::uint64_t bytes = 0;
};

class BoxPlanner {
 public:
  BoxPlanner(BoxPlan& plan, const std::vector<bool>& writes) : plan_(plan), writes_(writes) {}

  void assign() {
    std::map<std::vector<int>, Share> shares;
    for (std::size_t i = 0; i < plan_.common.size(); ++i) {
      std::vector<int> ranks;
      for (const BoxHolder& writer : writers_among(plan_.common[i].holders, writes_))
        ranks.push_back(writer.rank);
      Share& share = shares[ranks];
      share.boxes.push_back(i);
      share.bytes += bytes_of(plan_.common[i]);
    }
    for (const auto& [ranks, share] : shares) divide(share, ranks.size());
  }

 private:
  std::uint64_t element(const CommonBox& box) const {
    return size_of(plan_.tensors[box.tensor].dtype);
  }
  std::uint64_t bytes_of(const CommonBox& box) const {
    return static_cast<std::uint64_t>(num_elements(box.box)) * element(box);
  }

  // Gives each writer the same number of bytes, as nearly as cuts between rows allow.
  void divide(const Share& share, std::size_t num_writers) {
    std::uint64_t done = 0;
    std::size_t writer = 0;
    const auto end_of = [&](std::size_t number) {
      return share.bytes * (number + 1) / num_writers;
    };
    for (const std::size_t number : share.boxes) {
      const CommonBox& common = plan_.common[number];
      const auto writers = writers_among(common.holders, writes_);
      const std::size_t dim = static_cast<std::size_t>(
          std::ranges::find_if(common.box.sizes, [](auto size) { return size > 1; }) -
          common.box.sizes.begin());
      const std::int64_t rows = dim < common.box.sizes.size() ? common.box.sizes[dim] : 1;
      const std::uint64_t row_bytes = bytes_of(common) / static_cast<std::uint64_t>(rows);
      for (std::int64_t row = 0; row < rows;) {
        while (writer + 1 < num_writers && done + row_bytes / 2 >= end_of(writer)) ++writer;
        std::int64_t count = rows - row;
        if (writer + 1 < num_writers) {
          const std::uint64_t fitting = (end_of(writer) - done + row_bytes / 2) / row_bytes;
          count = std::clamp<std::int64_t>(static_cast<std::int64_t>(fitting), 1, count);
        }
        Box part = common.box;
        if (dim < part.sizes.size()) {
          part.offsets[dim] += row;
          part.sizes[dim] = count;
        }
        give(number, writers[writer], part);
        row += count;
        done += static_cast<std::uint64_t>(count) * row_bytes;
      }
    }
  }

  void give(std::size_t number, const BoxHolder& writer, const Box& part) {
    const CommonBox& common = plan_.common[number];
    auto& list = plan_.of_rank[static_cast<std::size_t>(writer.rank)];
    const auto bytes = static_cast<std::uint64_t>(num_elements(part)) * element(common);
    const std::int64_t wanted = bytes >= kBytesOfMany ? 8 : 4;
    const bool is_cut = bytes >= kCutBytes && part.sizes.size() >= 2 && part.sizes[1] % wanted == 0;
    const std::int64_t columns = is_cut ? wanted : 1;
    for (std::int64_t column = 0; column < columns; ++column) {
      Box box = part;
      if (is_cut) {
        box.sizes[1] /= columns;
        box.offsets[1] += column * box.sizes[1];
      }
      list.push_back({common.tensor, std::move(box), writer.index, number});
    }
  }

  BoxPlan& plan_;
  const std::vector<bool>& writes_;
};

}  // namespace

std::uint64_t bytes_of(const BoxPlan& plan, const BoxToWrite& one) {
  return static_cast<std::uint64_t>(num_elements(one.box)) *
         size_of(plan.tensors[one.tensor].dtype);
}

BoxPlan plan_boxes(const std::vector<std::vector<HeldBox>>& held, const std::vector<bool>& writes) {
  BoxPlan plan;
  plan.of_rank.resize(held.size());
  for (const auto& [name, tensor] : by_name(held)) {
    for (auto& [box, holders] : disjoint_boxes(tensor))
      plan.common.push_back({plan.tensors.size(), std::move(box), holders});
    plan.tensors.push_back({name, tensor.dtype, tensor.shape, {}});
  }
  BoxPlanner(plan, writes).assign();
  for (const auto& list : plan.of_rank) {
    plan.file_of_rank.push_back(static_cast<std::uint32_t>(plan.num_files));
    std::uint64_t position = 0;
    for (const BoxToWrite& one : list) {
      StoredTensor& tensor = plan.tensors[one.tensor];
      tensor.boxes.push_back({one.box, plan.file_of_rank.back(), position});
      position += bytes_of(plan, one);
    }
    if (!list.empty()) ++plan.num_files;
  }
  for (const StoredTensor& tensor : plan.tensors) require_whole(tensor);
  return plan;
}

std::string encode(const std::vector<HeldBox>& held) {
  ByteWriter writer;
  const auto put = [&](const std::vector<std::int64_t>& numbers) {
    writer.put(static_cast<std::uint32_t>(numbers.size()));
    for (const std::int64_t number : numbers) writer.put(number);
  };
  writer.put(static_cast<std::uint64_t>(held.size()));
  for (const HeldBox& one : held) {
    writer.put_string(one.name);
    writer.put(one.dtype);
    for (const auto* numbers : {&one.shape, &one.box.offsets, &one.box.sizes}) put(*numbers);
  }
  return to_string(writer.bytes());
}

std::vector<HeldBox> decode_held(const std::string& text) {
  ByteReader reader(as_bytes(text));
  const auto numbers = [&] {
    std::vector<std::int64_t> all(reader.get_count<std::uint32_t>(sizeof(std::int64_t)));
    for (std::int64_t& number : all) number = reader.get<std::int64_t>();
    return all;
  };
  // The fewest bytes that a box takes: four lengths and a type.
  constexpr std::size_t kMinBytes = 4 * sizeof(std::uint32_t) + sizeof(Dtype);
  std::vector<HeldBox> held(reader.get_count<std::uint64_t>(kMinBytes));
  for (HeldBox& one : held) {
    one.name = to_string(reader.take(reader.get<std::uint32_t>()));
    one.dtype = reader.get<Dtype>();
    if (std::ranges::find(kAllDtypes, one.dtype) == kAllDtypes.end())
      fail(ErrorCode::kCorrupt, "tensor \"{}\" of another rank has no known type", one.name);
    one.shape = numbers();
    one.box.offsets = numbers();
    one.box.sizes = numbers();
    const bool is_box = one.box.offsets.size() == one.box.sizes.size() &&
                        std::ranges::all_of(one.box.sizes, [](auto size) { return size >= 0; });
    if (!is_box) fail(ErrorCode::kCorrupt, "tensor \"{}\" of another rank has no box", one.name);
  }
  return held;
}

bool AgreedPlan::update(ProcessGroup& group, const std::vector<HeldMemory>& held,
                        const std::vector<bool>& writes) {
  const bool is_same = plan_ && std::ranges::equal(held, held_, {}, &HeldMemory::held);
  std::int32_t changed = is_same ? 0 : 1;
  group.all_reduce(std::span(&changed, 1), ReduceOp::kMax);
  if (changed == 0) return false;
  plan_.reset();
  held_.clear();
  for (const HeldMemory& one : held) held_.push_back(one.held);
  std::vector<std::vector<HeldBox>> all;
  for (const std::string& text : all_gather_object(group, encode(held_)))
    all.push_back(decode_held(text));
  plan_ = plan_boxes(all, writes);
  return true;
}

std::uint64_t AgreedPlan::file_bytes(int rank) const {
  std::uint64_t bytes = 0;
  for (const BoxToWrite& one : plan_->of_rank[static_cast<std::size_t>(rank)])
    bytes += bytes_of(*plan_, one);
  return bytes;
}

Manifest AgreedPlan::manifest(std::int64_t step, const CheckpointMetadata& metadata,
                              std::vector<ManifestFile> files) const {
  return {.step = step,
          .run = metadata.run,
          .world_size = static_cast<int>(plan_->of_rank.size()),
          .files = std::move(files),
          .tensors = plan_->tensors,
          .metadata = metadata.metadata};
}

}  // namespace paceline
