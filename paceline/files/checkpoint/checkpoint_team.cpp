#include "paceline/files/checkpoint/checkpoint_team.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/files/checkpoint/file_system.h"

namespace paceline {
namespace {

constexpr std::uint64_t kMaxOwnerBytes = 64 << 10;

// Wraps bytes as the buffer of a collective.
Buffer buffer_of(std::span<std::byte> bytes) {
  return Buffer(bytes.data(), bytes.size(), Dtype::kUint8);
}

// Returns whether one of the floating-point numbers is an infinity or NaN: these have all bits of
// the exponent set.
template <class Bits>
bool any_has_exponent(std::span<const std::byte> numbers, Bits exponent) {
  // The compiler vectorises the loop over a block, because the loop has no early exit. If the last
  // block is shorter, numbers of the previous block follow its own; all of them are finite.
  std::array<Bits, 1024> block = {};
  while (!numbers.empty()) {
    const std::size_t bytes = std::min(numbers.size(), sizeof block);
    std::memcpy(block.data(), numbers.data(), bytes);
    Bits any = 0;
    for (const Bits bits : block) any |= static_cast<Bits>((bits & exponent) == exponent);
    if (any != 0) return true;
    numbers = numbers.subspan(bytes);
  }
  return false;
}

bool is_finite(std::span<const std::byte> numbers, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return !any_has_exponent<std::uint32_t>(numbers, 0x7f80'0000);
    case Dtype::kFloat64:
      return !any_has_exponent<std::uint64_t>(numbers, 0x7ff0'0000'0000'0000);
    case Dtype::kFloat16:
      return !any_has_exponent<std::uint16_t>(numbers, 0x7c00);
    case Dtype::kBfloat16:
      return !any_has_exponent<std::uint16_t>(numbers, 0x7f80);
    default:
      return true;  // integers
  }
}

// The text of the writer's owner.json as this rank sees it; empty when this rank cannot read it.
// Ranks that read equal texts see the same directory.
std::string owner_of(FileSystem& files, const std::string& workspace) try {
  return to_string(read_plain_file(files, workspace + "/owner.json", kMaxOwnerBytes));
} catch (const Error&) {
  return "";
}

}  // namespace

struct CheckpointTeam::Report {
  std::map<std::uint32_t, ManifestFile> files;  // by number
  std::optional<Error> error;
  bool is_full = false;    // the error is a full disk
  std::string not_finite;  // the first tensor that is not finite; empty: none

  std::string encode() const {
    nlohmann::json json;
    for (const auto& [number, file] : files)
      json["files"].push_back({number, file.name, file.size, file.digest});
    if (!not_finite.empty()) json["not_finite"] = not_finite;
    if (error) {
      json["code"] = static_cast<int>(error->code());
      json["error"] = error->what();
      json["full"] = is_full;
    }
    return json_text(json);
  }
  static Report decode(const std::string& text) {
    const auto json = parse_json(text);
    Report report;
    if (json.contains("files")) {
      for (const auto& file : json["files"])
        report.files.emplace(file[0].get<std::uint32_t>(), ManifestFile{file[1], file[2], file[3]});
    }
    if (json.contains("not_finite")) report.not_finite = json["not_finite"];
    if (json.contains("error")) {
      report.error.emplace(static_cast<ErrorCode>(json["code"].get<int>()),
                           json["error"].get<std::string>());
      report.is_full = json["full"];
    }
    return report;
  }
};

CheckpointTeam::CheckpointTeam(std::shared_ptr<ProcessGroup> group, const std::string& path,
                               const CheckpointDirectoryOptions& options, FileSystem& files)
    : group_(std::move(group)),
      files_(files),
      disk_timeout_(std::max(group_->timeout(), options.disk_timeout)),
      writer_(group_->timeline(), disk_timeout_) {
  form_background();
  on_rank(0, *background_, [&] { directory_.emplace(path, options, files_); });
  find_who_sees(path);
}

// Collective.
void CheckpointTeam::form_background() {
  if (group_->world_size() == 1) {
    background_ = group_;
    is_broken_ = false;
    return;
  }
  engine(*group_).enter(kMakeCheckpointer);  // the group's own timeout detects a missing rank
  GroupOptions options = group_->options();
  options.timeout = disk_timeout_;
  background_ = group_->split(0, group_->rank(), options, "checkpoint");
  is_broken_ = false;
}

// Collective. Waits until no rank is writing, and forms the background group again if it has
// failed. Returns false on every rank when one of them is still writing. First each rank tells the
// others whether it is writing. This is fast, so no rank waits for a disk inside a collective of
// the caller's group.
bool CheckpointTeam::settle(std::optional<std::int64_t> step) {
  const auto any_rank = [&] {
    std::array<std::int32_t, 2> any = {writer_.is_busy() ? 1 : 0, is_broken_ ? 1 : 0};
    group_->all_reduce(std::span(any), ReduceOp::kMax);
    return std::pair(any[0] != 0, any[1] != 0);
  };
  auto [is_busy, is_broken] = any_rank();
  if (is_busy && !is_broken) {
    try {
      if (writer_.take_turn(step, Deadline::after(disk_timeout_))) {
        background_->barrier();
      } else {
        is_broken_ = true;
        if (background_ != group_)
          background_->abort("its disk did not write a checkpoint in time");
      }
    } catch (const Error& error) {
      log::debug(error.what());
      is_broken_ = true;
    }
    std::tie(is_busy, is_broken) = any_rank();
  }
  if (is_busy) return false;
  if (is_broken) form_background();
  return true;
}

ProcessGroup& CheckpointTeam::waiting_group() {
  if (!settle(std::nullopt)) {
    fail(ErrorCode::kTimeout,
         "{}: a checkpoint has not been written within {} s, because the disk of a rank does not "
         "answer; check the file system, or raise CheckpointDirectoryOptions::disk_timeout",
         group_->self(), std::chrono::ceil<std::chrono::seconds>(disk_timeout_).count());
  }
  return *background_;
}

// Collective. Finds out which ranks see the same directory. Other hosts may lack the symbolic links
// in rank 0's path, or have different ones, so each rank resolves the path by itself.
void CheckpointTeam::find_who_sees(const std::string& path) {
  std::string workspace, owner;
  if (directory_) {
    workspace = directory_->workspace().substr(directory_->path().size());
    owner = owner_of(files_, directory_->workspace());
  }
  path_ = broadcast_object(*background_, path, 0);
  path_ = directory_ ? directory_->path() : without_links(path_);
  workspace = path_ + broadcast_object(*background_, workspace, 0);
  owner = broadcast_object(*background_, owner, 0);
  const std::int32_t mine =
      group_->rank() == 0 || (!owner.empty() && owner_of(files_, workspace) == owner) ? 1 : 0;
  std::vector<std::int32_t> all(static_cast<std::size_t>(group_->world_size()));
  background_->all_gather(std::span(all), std::span(&mine, 1));
  for (const std::int32_t one : all) sees_.push_back(one != 0);
  const auto blind = std::ranges::count(sees_, false);
  if (blind > 0 && group_->rank() == 0) {
    log::warning(fmt::format(
        "checkpoint directory {}: {} of {} ranks do not see it; rank 0 writes and reads for them, "
        "which takes longer; a folder that all hosts share avoids that",
        path, blind, sees_.size()));
  }
}

// Collective. Reserves memory for the files that this rank writes. Returns false, with a line in
// the log, when a rank has too little memory.
bool CheckpointTeam::reserve() {
  std::optional<Error> failure;
  const auto stage = [&](int rank) {
    staged_.push_back({rank, plan_.file_bytes(rank), {}});
    staged_.back().memory.reserve(staged_.back().bytes);
  };
  staged_.clear();
  try {
    stage(group_->rank());
    for (int rank = 0; group_->rank() == 0 && rank < group_->world_size(); ++rank) {
      if (!sees(rank)) stage(rank);
    }
  } catch (const Error& error) {
    failure = error;
    log::error(fmt::format("{}: {}", group_->self(), error.what()));
  }
  return all_reduce_value(*group_, failure ? 0 : 1, ReduceOp::kMin) == 1;
}

// Collective. Ranks that do not see the directory send their copies to rank 0.
void CheckpointTeam::send_to_rank_0() {
  for (const Staged& one : staged_) {
    if (sees(one.rank) || one.bytes == 0) continue;
    const Buffer buffer = buffer_of({one.memory.data(), one.bytes});
    if (group_->rank() == 0) {
      group_->recv(buffer, one.rank);
    } else {
      group_->send(buffer, 0);
    }
  }
}

void CheckpointTeam::save(std::int64_t step, const std::vector<HeldMemory>& held,
                          const CheckpointMetadata& metadata) {
  if (!settle(step)) {
    writer_.refuse(step, Error(ErrorCode::kTimeout,
                               fmt::format("{}: the previous checkpoint has not been written yet, "
                                           "because the disk of a rank does not answer; no new one "
                                           "begins before that",
                                           group_->self())));
    return;
  }
  if (plan_.update(*group_, held, sees_)) has_room_ = false;
  if (!has_room_) has_room_ = reserve();
  if (!has_room_) {
    writer_.start(step, [] {
      fail(ErrorCode::kSystem, "a rank has too little memory for a copy of its boxes; see above");
    });
    return;
  }
  std::byte* place = staged_.front().memory.data();
  finite_parts_.clear();
  for (const BoxToWrite& one : plan_->of_rank[static_cast<std::size_t>(group_->rank())]) {
    const auto& [what, where, must_be_finite] = held[one.index];
    const std::size_t element = size_of(what.dtype);
    copy_elements({place, row_major_strides(one.box.sizes)},
                  place_of_part(where, what.box, one.box, element), one.box.sizes, element);
    const std::uint64_t bytes = bytes_of(*plan_, one);
    if (must_be_finite) finite_parts_.push_back({what.name, what.dtype, {place, bytes}});
    place += bytes;
  }
  send_to_rank_0();
  writer_.start(step, [this, step, metadata] { write_together(step, metadata); });
}

// The first tensor of this rank's file that has an infinity or NaN and should have none; empty:
// there is none.
std::string CheckpointTeam::not_finite() const {
  const auto wrong = std::ranges::find_if(
      finite_parts_, [](const FinitePart& part) { return !is_finite(part.bytes, part.dtype); });
  return wrong == finite_parts_.end() ? "" : wrong->tensor;
}

void CheckpointTeam::warn_once(std::int64_t step, const CheckpointMetadata& metadata) {
  const auto wrong = metadata.metadata.find(Manifest::kNotFinite);
  if (wrong == metadata.metadata.end() || std::exchange(has_warned_, true)) return;
  log::warning(fmt::format(
      "checkpoint of step {}: {} is not finite; the newest checkpoint in {} with finite "
      "parameters is kept: to continue from it, remove the later ones and resume (reported once)",
      step, wrong->second, path_));
}

// Steps 2 to 4 of the protocol, in the background on all ranks. Rank 0 sends the others the name of
// the folder to write into. After making room on a full disk it sends another name, and at the end
// an empty name.
void CheckpointTeam::write_together(std::int64_t step, const CheckpointMetadata& metadata) {
  const auto together = [&](const auto& action) {
    try {
      return action();
    } catch (const Error& error) {
      is_broken_ = true;
      // kAborted would mean that another generation of the job has taken over.
      const bool is_aborted = error.code() == ErrorCode::kAborted;
      throw Error(is_aborted ? ErrorCode::kSystem : error.code(), error.what());
    }
  };
  const auto order = [&](const std::string& folder) {
    return together([&] { return broadcast_object(*background_, folder, 0); });
  };
  const std::string run = together([&] { return broadcast_object(*background_, metadata.run, 0); });
  // Writes this rank's staged files to the folder. On rank 0, returns the reports of all
  // ranks.
  const auto write = [&](const std::string& folder) {
    Report report;
    try {
      for (const Staged& one : staged_) {
        if (one.bytes == 0 || !sees(group_->rank())) continue;
        const auto number = plan_->file_of_rank[static_cast<std::size_t>(one.rank)];
        const auto path = path_ + folder + "/" + box_file_name(number, plan_->num_files);
        BoxFileWriter file(files_, path, {step, run, number}, one.bytes);
        file.add({one.memory.data(), one.bytes});
        report.files.emplace(number, file.finish());
      }
      report.not_finite = not_finite();
    } catch (const Error& error) {
      report.error = error;
      report.is_full = dynamic_cast<const DiskFull*>(&error) != nullptr;
    }
    return together([&] { return gather_objects(*background_, report.encode(), 0); });
  };
  if (!directory_) {
    for (std::string folder = order(""); !folder.empty(); folder = order("")) write(folder);
    return;
  }
  const auto end = [&] {
    try {
      order("");
    } catch (const Error& error) {
      log::debug(error.what());  // the save has failed for the same reason
    }
  };
  try {
    directory_->save_files(step, [&](const std::string& whole_path) {
      const std::string folder = whole_path.substr(path_.size());
      order(folder);
      std::vector<ManifestFile> files(plan_->num_files);
      std::optional<Error> full;
      CheckpointMetadata all_metadata{run, metadata.metadata};
      for (const std::string& text : write(folder)) {
        const Report report = Report::decode(text);
        if (report.error && !report.is_full) throw *report.error;
        if (report.error && !full) full = report.error;
        for (const auto& [number, file] : report.files) files.at(number) = file;
        if (!report.not_finite.empty())
          all_metadata.metadata.try_emplace(Manifest::kNotFinite, report.not_finite);
      }
      if (full) throw DiskFull(full->code(), full->what());
      warn_once(step, all_metadata);
      return plan_.manifest(step, all_metadata, std::move(files));
    });
  } catch (...) {
    end();
    throw;
  }
  end();
}

std::uint64_t CheckpointTeam::read(const Manifest& manifest, const std::vector<WantedBox>& wanted) {
  ProcessGroup& group = waiting_group();
  const std::string folder =
      path_ +
      broadcast_object(
          group, directory_ ? directory_->folder_of(manifest.step).substr(path_.size()) : "", 0);
  std::uint64_t bytes = 0;
  std::optional<Error> failure;
  try {
    if (sees(group_->rank())) {
      BoxReader reader(files_, folder, manifest);
      reader.read(wanted);
      bytes = reader.bytes_read();
    }
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {  // bad_alloc
    failure = Error(ErrorCode::kSystem, error.what());
  }
  detail::throw_first_error(group, failure);
  if (std::ranges::count(sees_, false) == 0) return bytes;
  try {
    read_for_others(manifest, folder, wanted, bytes);
  } catch (const Error& error) {
    failure = error;
  }
  detail::throw_first_error(group, failure);
  return bytes;
}

// Collective. Rank 0 reads, box by box, for the ranks that do not see the directory.
void CheckpointTeam::read_for_others(const Manifest& manifest, const std::string& folder,
                                     const std::vector<WantedBox>& wanted, std::uint64_t& bytes) {
  const int self = group_->rank();
  std::vector<HeldBox> list;
  if (!sees(self)) {
    for (const WantedBox& one : wanted) {
      const StoredTensor* const tensor = manifest.find(one.name);
      check(tensor != nullptr, "rank {}: the checkpoint has no tensor \"{}\"", self, one.name);
      list.push_back({one.name, tensor->dtype, {}, one.box});
    }
  }
  const auto lists = gather_objects(*background_, encode(list), 0);
  if (self != 0) {
    for (const WantedBox& one : sees(self) ? std::vector<WantedBox>() : wanted) {
      std::int32_t is_read = 0;
      background_->recv(buffer_of(std::as_writable_bytes(std::span(&is_read, 1))), 0);
      if (is_read == 0) return;  // rank 0 throws the error
      const std::size_t size =
          static_cast<std::size_t>(num_elements(one.box)) * size_of(manifest.find(one.name)->dtype);
      if (size > 0) background_->recv(buffer_of({one.to, size}), 0);
    }
    return;
  }
  std::optional<Error> failure;
  BoxReader reader(files_, folder, manifest);
  std::vector<std::byte> box;
  for (std::size_t rank = 1; rank < lists.size(); ++rank) {
    for (const HeldBox& one : decode_held(lists[rank])) {
      box.resize(static_cast<std::size_t>(num_elements(one.box)) * size_of(one.dtype));
      const WantedBox here{one.name, one.box, box.data()};
      try {
        if (!failure) reader.read(std::span(&here, 1));
      } catch (const Error& error) {
        failure = error;
      }
      std::int32_t is_read = failure ? 0 : 1;
      background_->send(buffer_of(std::as_writable_bytes(std::span(&is_read, 1))),
                        static_cast<int>(rank));
      if (failure) break;
      if (!box.empty()) background_->send(buffer_of(box), static_cast<int>(rank));
    }
  }
  bytes += reader.bytes_read();
  if (failure) throw *failure;
}

}  // namespace paceline
