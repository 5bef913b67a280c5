#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/manifest.h"
#include "paceline/files/checkpoint/memory_checkpoint.h"

namespace paceline {

// A contiguous part of a file, with whole boxes or parts of boxes.
struct MemoryPiece {
  std::vector<BoxToWrite> boxes;
  std::uint64_t bytes = 0;
  bool travels = false;  // the second writer does not hold these boxes and receives their elements
};

namespace {

constexpr std::uint64_t kMemoryPieceBytes = 4 << 20;

// Cuts a file, which consists of the boxes in `list`, into pieces of at most kMemoryPieceBytes. A
// larger box is spread over several pieces. `travels` returns whether the second writer must
// receive a box; all boxes of a piece travel, or none of them does.
std::vector<MemoryPiece> pieces_of(const std::vector<BoxToWrite>& list,
                                   const std::vector<StoredTensor>& tensors,
                                   const std::function<bool(const BoxToWrite&)>& travels) {
  std::vector<MemoryPiece> pieces;
  for (const BoxToWrite& one : list) {
    const std::uint64_t element = size_of(tensors[one.tensor].dtype);
    const bool box_travels = travels(one);
    const std::int64_t all = num_elements(one.box);
    const auto most = static_cast<std::int64_t>(kMemoryPieceBytes / element);
    for (std::int64_t first = 0; first < all; first += most) {
      for (Box& box : boxes_of_run(one.box.sizes, first, std::min(most, all - first))) {
        for (std::size_t i = 0; i < box.offsets.size(); ++i) box.offsets[i] += one.box.offsets[i];
        const std::uint64_t bytes = static_cast<std::uint64_t>(num_elements(box)) * element;
        if (pieces.empty() || pieces.back().travels != box_travels ||
            pieces.back().bytes + bytes > kMemoryPieceBytes)
          pieces.push_back({.boxes = {}, .bytes = 0, .travels = box_travels});
        pieces.back().boxes.push_back({one.tensor, std::move(box), one.index, one.common});
        pieces.back().bytes += bytes;
      }
    }
  }
  return pieces;
}

// Returns the index of box `one` in the list of the boxes that `rank` holds; nullopt if `rank` does
// not hold the box.
std::optional<std::size_t> index_on(const BoxPlan& plan, const BoxToWrite& one, int rank) {
  const auto& holders = plan.common[one.common].holders;
  const auto found = std::ranges::find(holders, rank, &BoxHolder::rank);
  return found == holders.end() ? std::nullopt : std::optional(found->index);
}

// A checkpoint of which at least one memory has files.
struct Offer {
  std::int64_t step = 0;
  std::string run;
  std::size_t num_files = 0;      // the number of files of the whole checkpoint
  std::set<std::uint32_t> files;  // the numbers of the files that at least one memory has
  int rank = 0;                   // the first rank that offers the checkpoint
};
// The offers by the number and the id of their save, the newest save first.
using Offers = std::map<std::pair<std::uint64_t, std::string>, Offer, std::greater<>>;

// Runs `action`. If it throws an Error, stores the error in `failure`.
void attempt(std::optional<Error>& failure, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    failure = error;
  }
}

// Collective. Returns the offers of all ranks. `sealed`: the slots that this rank offers.
Offers gather_offers(ProcessGroup& group, const std::vector<SealedSlot>& sealed) {
  auto mine = nlohmann::json::array();
  for (const SealedSlot& one : sealed) {
    mine.push_back({one.number, one.id, one.manifest.step, one.manifest.run,
                    one.manifest.files.size(), one.files});
  }
  Offers offers;
  const auto all = all_gather_object(group, json_text(mine));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& one : parse_json(all[rank])) {
      const auto [place, is_new] = offers.try_emplace({one[0], one[1]});
      Offer& offer = place->second;
      if (is_new) offer = {one[2], one[3], one[4], {}, static_cast<int>(rank)};
      for (const std::uint32_t file : one[5]) offer.files.insert(file);
    }
  }
  return offers;
}

// Sorts the boxes that a rank wants by their tensors: element i of the result has the boxes of
// manifest.tensors[i]. Error(kInvalid) if the manifest lacks the tensor of a box.
std::vector<std::vector<const WantedBox*>> by_tensor(const Manifest& manifest,
                                                     const std::vector<WantedBox>& wanted) {
  std::vector<std::vector<const WantedBox*>> wants(manifest.tensors.size());
  for (const WantedBox& one : wanted) {
    const StoredTensor* const tensor = manifest.find(one.name);
    check(tensor != nullptr, "the checkpoint in memory has no tensor \"{}\"", one.name);
    wants[static_cast<std::size_t>(tensor - manifest.tensors.data())].push_back(&one);
  }
  return wants;
}

// Returns the boxes of each file of the checkpoint, in the order of their positions in the file.
std::vector<std::vector<BoxToWrite>> boxes_by_file(const Manifest& manifest) {
  std::vector<std::map<std::uint64_t, BoxToWrite>> by_position(manifest.files.size());
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    for (const StoredBox& stored : manifest.tensors[i].boxes)
      by_position[stored.file].emplace(stored.position, BoxToWrite{i, stored.box, 0, 0});
  }
  std::vector<std::vector<BoxToWrite>> files(by_position.size());
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (auto& [position, one] : by_position[file]) files[file].push_back(std::move(one));
  }
  return files;
}

// Copies the elements of a piece that this rank wants to their places in this rank's tensors.
// `bytes`: the elements of the piece. `wants`: from by_tensor().
void hand_out(const MemoryPiece& piece, std::byte* bytes, const Manifest& manifest,
              const std::vector<std::vector<const WantedBox*>>& wants) {
  for (const BoxToWrite& one : piece.boxes) {
    const std::size_t element = size_of(manifest.tensors[one.tensor].dtype);
    for (const WantedBox* const want : wants[one.tensor]) {
      const auto part = common_part(one.box, want->box);
      if (!part) continue;
      copy_elements(
          place_of_part({want->to, row_major_strides(want->box.sizes)}, want->box, *part, element),
          place_of_part({bytes, row_major_strides(one.box.sizes)}, one.box, *part, element),
          part->sizes, element);
    }
    bytes += static_cast<std::size_t>(num_elements(one.box)) * element;
  }
}

}  // namespace

struct MemoryTeam::Stream {
  int from = 0;                // the rank whose file the stream writes
  std::uint64_t position = 0;  // where the next piece belongs in this rank's memory
  std::vector<MemoryPiece> pieces;
  std::vector<std::byte> bytes;  // the elements of the current piece
  Digest digest;
};

MemoryTeam::MemoryTeam(std::shared_ptr<ProcessGroup> group, const std::string& path)
    : group_(std::move(group)) {
  const auto on_all = [&](const std::function<void()>& action) {
    std::optional<Error> failure;
    attempt(failure, action);
    detail::throw_first_error(*group_, failure);
  };
  on_all([&] { memory_.emplace(path); });
  // The ranks of a host may have several memories, one for each launcher.
  const auto self = static_cast<std::size_t>(group_->rank());
  const auto [device, inode] = memory_->identity();
  using Name = std::array<std::int64_t, 3>;
  const Name mine = {group_->hosts().host_of[self], device, inode};
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(group_->world_size()));
  group_->all_gather(std::span(all), std::span(mine));
  std::map<Name, int> numbers;
  std::vector<int> memory_of;
  for (std::size_t i = 0; i < all.size(); i += mine.size()) {
    const Name name = {all[i], all[i + 1], all[i + 2]};
    memory_of.push_back(numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second);
  }
  memories_ = Hosts::from(memory_of);
  on_all([&] {
    if (is_keeper()) memory_->lock();
  });
}

const std::vector<int>& MemoryTeam::ranks_of(int memory) const {
  return memories_.members[static_cast<std::size_t>(memory)];
}

// Returns the rank that writes the file of `rank` into the next memory; nullopt if there is only
// one memory.
std::optional<int> MemoryTeam::second_writer(int rank) const {
  if (memories_.size() == 1) return std::nullopt;
  const auto& ranks = ranks_of(memory_after(memory_of(rank)));
  return ranks[memories_.local_index(rank) % ranks.size()];
}

// Returns the ranks whose files this rank's memory holds, in the order of the files in the memory.
std::vector<int> MemoryTeam::writers_here() const {
  std::vector<int> writers;
  const int here = memory_of(group_->rank());
  for (int rank = 0; rank < group_->world_size(); ++rank) {
    const int memory = memory_of(rank);
    if ((memory == here || memory_after(memory) == here) &&
        !plan_->of_rank[static_cast<std::size_t>(rank)].empty())
      writers.push_back(rank);
  }
  return writers;
}

// Returns a stream for each file that this rank writes, its own file first.
std::vector<std::unique_ptr<MemoryTeam::Stream>> MemoryTeam::streams() const {
  const int self = group_->rank();
  std::vector<std::unique_ptr<Stream>> streams;
  const auto add = [&](int rank, std::uint64_t position) {
    const std::optional<int> second = second_writer(rank);
    auto& stream = streams.emplace_back(std::make_unique<Stream>());
    stream->from = rank;
    stream->position = position;
    stream->pieces =
        pieces_of(plan_->of_rank[static_cast<std::size_t>(rank)], plan_->tensors,
                  [&](const BoxToWrite& one) { return second && !index_on(*plan_, one, *second); });
  };
  std::map<int, std::uint64_t> positions;
  std::uint64_t position = 0;
  for (const int rank : writers_here()) {
    positions[rank] = position;
    position += plan_.file_bytes(rank);
  }
  add(self, positions[self]);
  for (const auto& [rank, begin] : positions) {
    if (second_writer(rank) == self) add(rank, begin);
  }
  return streams;
}

// Collective. Writes all streams into the slot. Returns the first error of this rank, which
// continues to send and receive after the error, so that no other rank waits for it forever.
std::optional<Error> MemoryTeam::write(int slot, const std::vector<HeldMemory>& held,
                                       const std::vector<std::unique_ptr<Stream>>& streams) {
  const int self = group_->rank();
  std::optional<Error> failure;
  const auto keep = [&](Stream& stream) {
    stream.digest.update(stream.bytes);
    if (!failure) attempt(failure, [&] { memory_->write(slot, stream.position, stream.bytes); });
    stream.position += stream.bytes.size();
  };
  std::size_t rounds = 0;
  for (const auto& stream : streams) rounds = std::max(rounds, stream->pieces.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<Call> messages;
    std::vector<Stream*> arriving;
    for (const auto& stream : streams) {
      if (round >= stream->pieces.size()) continue;
      const MemoryPiece& piece = stream->pieces[round];
      stream->bytes.resize(piece.bytes);
      if (piece.travels && stream->from != self) {
        messages.push_back(
            {.op = Op::kReceive, .output = std::span(stream->bytes), .peer = stream->from});
        arriving.push_back(stream.get());
        continue;
      }
      std::byte* to = stream->bytes.data();
      for (const BoxToWrite& one : piece.boxes) {
        const HeldMemory& part = held[*index_on(*plan_, one, self)];
        const std::size_t element = size_of(part.held.dtype);
        copy_elements({to, row_major_strides(one.box.sizes)},
                      place_of_part(part.place, part.held.box, one.box, element), one.box.sizes,
                      element);
        to += bytes_of(*plan_, one);
      }
      if (piece.travels) {
        messages.push_back({.op = Op::kSend,
                            .input = std::span(std::as_const(stream->bytes)),
                            .peer = *second_writer(self)});
      }
    }
    const auto works = engine(*group_).batch_isend_irecv(messages);
    for (const auto& stream : streams) {
      if (round < stream->pieces.size() && !std::ranges::count(arriving, stream.get()))
        keep(*stream);
    }
    for (const auto& work : works) work->wait();
    for (Stream* const stream : arriving) keep(*stream);
  }
  return failure;
}

// Returns the manifest's list of all files of the checkpoint. `digests`: the digest of each rank's
// file.
std::vector<ManifestFile> MemoryTeam::files_with(const std::vector<std::string>& digests) const {
  std::vector<ManifestFile> files(plan_->num_files);
  for (std::size_t rank = 0; rank < digests.size(); ++rank) {
    const std::uint64_t bytes = plan_.file_bytes(static_cast<int>(rank));
    if (bytes == 0) continue;
    const std::uint32_t number = plan_->file_of_rank[rank];
    files[number] = {box_file_name(number, plan_->num_files), bytes, digests[rank]};
  }
  return files;
}

// Collective. Returns true if no rank passes a failure. Logs the first failure of this rank.
bool MemoryTeam::no_rank_failed(std::int64_t step, const std::optional<Error>& failure) {
  if (failure && !std::exchange(failure_is_logged_, true)) {
    log::error(fmt::format("step {}: the in-memory checkpoint failed: {}; not reported again", step,
                           failure->what()));
  }
  return all_reduce_value(*group_, failure ? 0 : 1, ReduceOp::kMin) == 1;
}

bool MemoryTeam::save(std::int64_t step, const std::vector<HeldMemory>& held,
                      const CheckpointMetadata& metadata) {
  check(step >= 0, "memory checkpoint: step {} is negative", step);
  const auto world = static_cast<std::size_t>(group_->world_size());
  plan_.update(*group_, held, std::vector<bool>(world, true));
  std::optional<Error> failure;

  OpenSlot open;
  if (is_keeper()) attempt(failure, [&] { open = memory_->open_older(); });
  if (!no_rank_failed(step, failure)) return false;
  const std::array<std::int64_t, 2> mine = {open.slot, static_cast<std::int64_t>(open.newest)};
  std::vector<std::int64_t> all(2 * world);
  group_->all_gather(std::span(all), std::span(mine));
  const auto keeper = static_cast<std::size_t>(memories_.neighbours(group_->rank()).front());
  const int slot = static_cast<int>(all[2 * keeper]);
  std::int64_t newest = 0;  // the number of the newest save in any memory
  for (std::size_t rank = 0; rank < world; ++rank) newest = std::max(newest, all[2 * rank + 1]);

  const auto streams = this->streams();
  failure = write(slot, held, streams);
  if (!no_rank_failed(step, failure)) return false;

  const auto digests = all_gather_object(*group_, streams.front()->digest.hex());
  // The launcher's name for a job may be invalid UTF-8.
  const auto own_metadata = json_text(nlohmann::json::array({metadata.run, metadata.metadata}));
  const auto shared_metadata = parse_json(broadcast_object(*group_, own_metadata, 0));
  attempt(failure, [&] {
    for (const auto& stream : streams) {
      if (stream->digest.hex() == digests[static_cast<std::size_t>(stream->from)]) continue;
      fail(ErrorCode::kCorrupt, "{} has different bits from {} in the boxes that both hold",
           group_->self(), group_->name_of_member(static_cast<std::size_t>(stream->from)));
    }
    if (!is_keeper()) return;
    std::vector<std::uint32_t> files;
    for (const int rank : writers_here())
      files.push_back(plan_->file_of_rank[static_cast<std::size_t>(rank)]);
    memory_->seal(
        slot, static_cast<std::uint64_t>(newest) + 1, files,
        plan_.manifest(step, {shared_metadata[0], shared_metadata[1]}, files_with(digests)));
  });
  if (no_rank_failed(step, failure)) return true;
  // If this slot stayed sealed, this save would count as the newest, although one memory lacks it.
  if (is_keeper()) attempt(failure, [&] { memory_->unseal(slot); });
  return false;
}

std::optional<Manifest> MemoryTeam::newest_here() const {
  if (!is_keeper()) return std::nullopt;
  auto sealed = memory_->sealed();
  return sealed.empty() ? std::nullopt : std::optional(std::move(sealed.front().manifest));
}

std::optional<Manifest> MemoryTeam::newest(std::int64_t at_least, const std::string& run) {
  chosen_.reset();
  const auto sealed = is_keeper() ? memory_->sealed() : std::vector<SealedSlot>();
  for (const auto& [name, offer] : gather_offers(*group_, sealed)) {
    if (!run.empty() && !offer.run.empty() && offer.run != run) continue;
    const auto refuse = [&, step = offer.step](std::size_t found, std::size_t wanted) {
      if (group_->rank() != 0) return;
      log::warning(fmt::format(
          "skipped the checkpoint of step {} in memory: the hosts have only {} of its {} files",
          step, found, wanted));
    };
    if (offer.files.size() < offer.num_files) {
      refuse(offer.files.size(), offer.num_files);
      continue;
    }
    if (offer.step < at_least) return std::nullopt;
    Chosen chosen{.number = name.first,
                  .manifest = {},
                  .roots = std::vector<int>(offer.num_files, -1),
                  .here = {}};
    std::vector<std::uint32_t> whole;
    for (const SealedSlot& one : sealed) {
      if (one.number != name.first || one.id != name.second) continue;
      chosen.here = one;
      std::ranges::copy_if(one.files, std::back_inserter(whole),
                           [&](std::uint32_t file) { return memory_->is_whole(one, file); });
    }
    const auto all = all_gather_object(*group_, json_text(nlohmann::json(whole)));
    for (int rank = group_->world_size() - 1; rank >= 0; --rank) {
      const auto files = parse_json(all[static_cast<std::size_t>(rank)]);
      for (const std::size_t file : files) {
        check(file < chosen.roots.size(), "{}: {} offers file {} of a checkpoint of {} files",
              group_->self(), group_->name_of_member(static_cast<std::size_t>(rank)), file,
              chosen.roots.size());
        chosen.roots[file] = rank;
      }
    }
    const auto missing = static_cast<std::size_t>(std::ranges::count(chosen.roots, -1));
    if (missing > 0) {
      refuse(offer.num_files - missing, offer.num_files);
      continue;
    }
    const std::string text = broadcast_object(
        *group_, group_->rank() == offer.rank ? to_json(chosen.here->manifest) : "", offer.rank);
    chosen.manifest = parse_manifest(text, "the manifest of the checkpoint in memory");
    chosen_ = std::move(chosen);
    return chosen_->manifest;
  }
  return std::nullopt;
}

void MemoryTeam::read(const std::vector<WantedBox>& wanted) {
  check(chosen_.has_value(),
        "memory checkpoint: read() needs a checkpoint that newest() has found");
  const Manifest& manifest = chosen_->manifest;
  std::optional<Error> failure;
  // Saves that are newer than the chosen one are incomplete. Without their seals, the next save
  // overwrites one of them, and not the chosen one.
  attempt(failure, [&] {
    if (!is_keeper()) return;
    for (const SealedSlot& one : memory_->sealed()) {
      if (one.number > chosen_->number) memory_->unseal(one.slot);
    }
  });
  std::vector<std::vector<const WantedBox*>> wants(manifest.tensors.size());
  attempt(failure, [&] { wants = by_tensor(manifest, wanted); });
  const auto files = boxes_by_file(manifest);
  std::vector<std::byte> bytes;
  for (std::uint32_t file = 0; file < files.size(); ++file) {
    const int root = chosen_->roots[file];
    std::uint64_t position = 0;
    for (const MemoryPiece& piece :
         pieces_of(files[file], manifest.tensors, [](auto&) { return false; })) {
      bytes.resize(piece.bytes);
      if (group_->rank() == root)
        attempt(failure, [&] { memory_->read(*chosen_->here, file, position, bytes); });
      group_->broadcast(std::span(bytes), root);
      hand_out(piece, bytes.data(), manifest, wants);
      position += piece.bytes;
    }
  }
  detail::throw_first_error(*group_, failure);
}

}  // namespace paceline
