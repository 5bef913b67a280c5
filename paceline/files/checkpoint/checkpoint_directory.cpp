#include "paceline/files/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <random>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/files.h"
#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/file_system.h"

namespace paceline {

namespace {

constexpr std::uint64_t kLimit = 64 << 10;

constexpr const char* kName = "/.run";

}  // namespace

std::optional<RunMark> read_run_mark(const std::string& directory, FileSystem& files) try {
  const auto path = directory + kName;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path))) return std::nullopt;
  const auto json = parse_strict_json(to_string(read_plain_file(files, path, kLimit)), path, 1);
  RunMark mark{.run = json.at("run"), .job = {}, .seed = {}};
  if (json.contains("job")) mark.job = json.at("job").get<std::string>();
  if (json.contains("seed")) mark.seed = json.at("seed").get<std::uint64_t>();
  return mark;
} catch (const std::exception& error) {
  log::error(fmt::format("{}; treated as a directory that belongs to no run", error.what()));
  return std::nullopt;
}

void write_run_mark(const std::string& directory, const std::string& workspace, const RunMark& mark,
                    FileSystem& files) {
  nlohmann::json json = {{"run", mark.run}};
  if (mark.job) json["job"] = *mark.job;
  if (mark.seed) json["seed"] = *mark.seed;
  // A launcher's name for its job need not be UTF-8.
  const auto text = json_text(json) + "\n";
  const auto path = directory + kName;
  const auto temporary = workspace + kName;
  const std::array parts = {as_bytes(text)};
  try {
    write_plain_file(files, temporary, parts);
    if (files.rename(temporary, path) != 0) {
      throw system_error(fmt::format("{}: cannot rename to {}", temporary, path));
    }
  } catch (...) {
    files.unlink(temporary);
    throw;
  }
  sync_directory(files, directory);
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";

std::string step_name(std::int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0) return std::nullopt;
  return name == step_name(step) ? std::optional(step) : std::nullopt;
}

void check_folder(const std::string& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) throw system_error(folder + ": cannot stat");
  if (!S_ISDIR(status.st_mode)) fail(ErrorCode::kCorrupt, "{}: not a directory", folder);
}

// A file with all tensors whole.
Manifest write_snapshot(FileSystem& files, const std::string& folder, std::int64_t step,
                        const Snapshot& snapshot) {
  Manifest manifest{.step = step,
                    .run = snapshot.run,
                    .world_size = snapshot.world_size,
                    .files = {},
                    .tensors = {},
                    .metadata = snapshot.metadata};
  std::vector<const NamedTensor*> tensors;
  for (const NamedTensor& tensor : snapshot.tensors) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  std::vector<std::span<const std::byte>> parts;
  std::uint64_t position = 0;
  for (const NamedTensor* const tensor : tensors) {
    StoredTensor stored{tensor->name, tensor->dtype, tensor->shape, {}};
    if (!tensor->bytes.empty()) stored.boxes.push_back({whole_box(tensor->shape), 0, position});
    require_whole(stored);
    check(manifest.tensors.empty() || manifest.tensors.back().name != stored.name,
          "checkpoint: two tensors are named \"{}\"", stored.name);
    check(stored.bytes() == tensor->bytes.size(),
          "checkpoint: tensor \"{}\" has {} bytes, {} needs {}", stored.name, tensor->bytes.size(),
          describe(stored.dtype, stored.shape), stored.bytes());
    manifest.tensors.push_back(std::move(stored));
    parts.push_back(tensor->bytes);
    position += tensor->bytes.size();
  }
  const std::string path = folder + "/" + box_file_name(0, 1);
  manifest.files = {write_box_file(files, path, {step, snapshot.run, 0}, parts)};
  return manifest;
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string path, CheckpointDirectoryOptions options,
                                         FileSystem& files)
    : path_(std::move(path)), options_(std::move(options)), files_(files) {
  check(options_.keep >= 1, "checkpoint directory {}: keep is {}, it must be at least 1", path_,
        options_.keep);
  if (options_.read_only) {
    path_ = without_links(path_);
    return;
  }
  std::error_code error;
  const bool is_new = fs::create_directories(path_, error);
  if (error) {
    fail(ErrorCode::kSystem, "checkpoint directory {}: cannot create: {}", path_, error.message());
  }
  path_ = without_links(path_);
  if (is_new) sync_directory(files_, fs::absolute(path_).lexically_normal().parent_path().string());
  claim_.emplace(path_, options_.writer, options_.lock_timeout, files_);
}

std::string CheckpointDirectory::folder_of(std::int64_t step) const {
  return fmt::format("{}/{}", path_, step_name(step));
}

// What is renamed from there, or to there, fails once another writer has taken over.
std::string CheckpointDirectory::temporary_folder(std::int64_t step) const {
  std::random_device random;
  return fmt::format("{}/{}.tmp-{:08x}{:08x}", claim_->workspace(), step_name(step), random(),
                     random());
}

// A failure because another writer has taken over is reported as such.
void CheckpointDirectory::change(const std::function<void()>& action) {
  check(claim_.has_value(), "checkpoint directory {}: it was opened for reading only", path_);
  try {
    action();
  } catch (const Error&) {
    claim_->check_held();
    throw;
  }
}

void CheckpointDirectory::set_mark(const RunMark& mark) {
  change([&] { write_run_mark(path_, claim_->workspace(), mark, files_); });
}

void CheckpointDirectory::save(std::int64_t step, const Snapshot& snapshot) {
  save_files(step, [&](const std::string& folder) {
    return write_snapshot(files_, folder, step, snapshot);
  });
}

void CheckpointDirectory::save_files(std::int64_t step, const WriteFiles& write) {
  check(step >= 0, "checkpoint directory {}: step {} is negative", path_, step);
  change([&] {
    claim_->check_held();
    if (room_) prune(step, std::max(1, *room_ - 1));
    bool was_full = false;
    for (bool saved = false; !saved;) {
      try {
        save_once(step, write);
        saved = true;
      } catch (const DiskFull&) {
        if (!make_room(step)) throw;
        was_full = true;
      }
    }
    if (was_full) note_room(step);
  });
  prune(step, options_.keep);
}

void CheckpointDirectory::save_once(std::int64_t step, const WriteFiles& write) {
  const auto temporary = temporary_folder(step);
  try {
    write_folder(temporary, write);
    commit(temporary, step);
  } catch (...) {
    remove_folder(temporary);
    throw;
  }
}

// Removes the oldest checkpoint that can be done without: the newest one that verifies stays. False
// when there is none.
bool CheckpointDirectory::make_room(std::int64_t newest) {
  const auto steps = list_up_to(newest);
  const auto whole =
      std::find_if(steps.rbegin(), steps.rend(), [&](std::int64_t step) { return verifies(step); });
  if (whole == steps.rend()) return false;
  return std::ranges::any_of(
      steps, [&](std::int64_t step) { return step != *whole && remove_checkpoint(step); });
}

// After a save that had to make room.
void CheckpointDirectory::note_room(std::int64_t newest) {
  room_ = static_cast<int>(list_up_to(newest).size());
  log::warning(fmt::format(
      "checkpoint directory {}: the disk is full: there is room for {} checkpoints, {} were to be "
      "kept and a new one written; from step {} on the oldest is removed before each save",
      path_, *room_, options_.keep, newest));
}

void CheckpointDirectory::write_folder(const std::string& folder, const WriteFiles& write) {
  if (files_.mkdir(folder, 0755) != 0) refuse(fmt::format("{}: cannot create", folder));
  const std::string text = to_json(write(folder));
  const std::array parts = {as_bytes(text)};
  write_plain_file(files_, folder + "/" + kManifestFile, parts);
  sync_directory(files_, folder);
}

void CheckpointDirectory::commit(const std::string& temporary, std::int64_t step) {
  const auto folder = folder_of(step);
  if (!fs::exists(fs::symlink_status(folder))) {
    if (files_.rename(temporary, folder) != 0) {
      refuse(fmt::format("{}: cannot rename to {}", temporary, folder));
    }
    sync_directory(files_, path_);
    return;
  }
  // The old one of this step leaves in the same instant. Where the file system cannot swap, it
  // steps aside first: a kill between the two renames costs this step's old checkpoint, never an
  // older one.
  auto replaced = temporary;
  if (files_.exchange(temporary, folder) != 0) {
    if (errno != EINVAL && errno != ENOSYS) {
      throw system_error(fmt::format("{}: cannot swap with {}", temporary, folder));
    }
    replaced = temporary_folder(step);
    if (files_.rename(folder, replaced) != 0) {
      throw system_error(fmt::format("{}: cannot rename to {}", folder, replaced));
    }
    if (files_.rename(temporary, folder) != 0) {
      const int error_number = errno;
      if (files_.rename(replaced, folder) != 0) log::error(replaced + ": cannot be put back");
      throw system_error(fmt::format("{}: cannot rename to {}", temporary, folder), error_number);
    }
  }
  sync_directory(files_, path_);
  remove_folder(replaced);
}

void CheckpointDirectory::prune(std::int64_t newest, int keep) noexcept try {
  const auto steps = list_up_to(newest);
  const auto surplus = std::max(std::int64_t{0}, std::ssize(steps) - keep);
  for (const auto step : std::span(steps).first(static_cast<std::size_t>(surplus))) {
    remove_checkpoint(step);
  }
} catch (const std::exception& error) {
  log::warning(error.what());
}

std::vector<std::int64_t> CheckpointDirectory::prune_to(int keep) {
  check(keep >= 1, "checkpoint directory {}: keep is {}, it must be at least 1", path_, keep);
  std::vector<std::int64_t> removed;
  change([&] {
    claim_->check_held();
    const auto steps = list();
    const auto surplus = std::span(steps).first(
        static_cast<std::size_t>(std::max(std::int64_t{0}, std::ssize(steps) - keep)));
    // If none of those that are kept can be loaded, the newest one that can stays, too.
    const auto verified = [&](std::int64_t step) { return verifies(step); };
    std::optional<std::int64_t> spared;
    if (!surplus.empty() && std::none_of(steps.rbegin(), steps.rbegin() + keep, verified)) {
      const auto whole = std::find_if(surplus.rbegin(), surplus.rend(), verified);
      if (whole != surplus.rend()) spared = *whole;
    }
    for (const std::int64_t step : surplus) {
      if (step != spared && remove_checkpoint(step)) removed.push_back(step);
    }
  });
  return removed;
}

void CheckpointDirectory::remove_folder(const std::string& folder) noexcept {
  if (!remove_tree(files_, folder)) log::warning(system_error(folder + ": cannot remove").what());
}

// Later ones are from before an older step was loaded.
std::vector<std::int64_t> CheckpointDirectory::list_up_to(std::int64_t newest) const {
  auto steps = list();
  std::erase_if(steps, [&](std::int64_t step) { return step > newest; });
  return steps;
}

// Under its own name a half-removed folder would look like a checkpoint.
bool CheckpointDirectory::remove_checkpoint(std::int64_t step) {
  const auto folder = folder_of(step);
  const auto doomed = temporary_folder(step);
  if (files_.rename(folder, doomed) != 0) {
    log::warning(system_error(folder + ": cannot rename for removal").what());
    return false;
  }
  remove_folder(doomed);
  return true;
}

void CheckpointDirectory::verify(std::int64_t step) const {
  require_step(step);
  const Manifest manifest = read_manifest(step);
  BoxReader(files_, folder_of(step), manifest).verify();
}

bool CheckpointDirectory::verifies(std::int64_t step) const noexcept try {
  verify(step);
  return true;
} catch (const std::exception&) {
  return false;
}

std::vector<std::int64_t> CheckpointDirectory::list() const {
  std::vector<std::int64_t> steps;
  std::error_code error;
  if (!fs::exists(path_, error) && !error) return steps;
  for (const auto& name : names_in(path_)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

Manifest CheckpointDirectory::read_manifest(std::int64_t step) const {
  const auto folder = folder_of(step);
  check_folder(folder);
  const auto path = folder + "/" + kManifestFile;
  auto manifest = parse_manifest(to_string(read_plain_file(files_, path, kManifestLimit)), path);
  if (manifest.step != step) {
    fail(ErrorCode::kCorrupt, "{}: of step {}, expected {}", path, manifest.step, step);
  }
  return manifest;
}

LoadedCheckpoint CheckpointDirectory::read_folder(std::int64_t step, const std::string& run) const {
  const auto folder = folder_of(step);
  const auto manifest = read_manifest(step);
  if (!run.empty() && !manifest.run.empty() && manifest.run != run) {
    fail(ErrorCode::kInvalid, "{}: of run {}, expected {}", folder, manifest.run, run);
  }
  LoadedCheckpoint loaded;
  loaded.step = step;
  loaded.snapshot.metadata = manifest.metadata;
  loaded.snapshot.world_size = manifest.world_size;
  loaded.snapshot.run = manifest.run;
  BoxReader reader(files_, folder, manifest);
  reader.open_all();  // so that the sizes are true
  loaded.storage.resize(manifest.bytes());
  std::vector<WantedBox> wanted;
  std::byte* place = loaded.storage.data();
  for (const StoredTensor& tensor : manifest.tensors) {
    wanted.push_back({tensor.name, whole_box(tensor.shape), place});
    loaded.snapshot.tensors.push_back(
        {tensor.name, tensor.dtype, tensor.shape, {place, tensor.bytes()}});
    place += tensor.bytes();
  }
  reader.read(wanted);
  return loaded;
}

std::optional<LoadedCheckpoint> CheckpointDirectory::load_newest(const std::string& run) const {
  std::vector<RefusedCheckpoint> refused;
  const auto steps = list();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      auto loaded = read_folder(*step, run);
      loaded.refused = std::move(refused);
      return loaded;
    } catch (const std::exception& error) {  // also bad_alloc: sizes come from an untrusted file
      log::error(fmt::format("checkpoint of step {} refused: {}", *step, error.what()));
      refused.push_back({*step, error.what()});
    }
  }
  if (refused.empty()) return std::nullopt;
  std::string reasons;
  for (const auto& one : refused) reasons += fmt::format("\n  step {}: {}", one.step, one.reason);
  fail(ErrorCode::kCorrupt, "checkpoint directory {}: none of {} checkpoints can be used:{}", path_,
       refused.size(), reasons);
}

void CheckpointDirectory::require_step(std::int64_t step) const {
  const auto steps = list();
  check(std::ranges::binary_search(steps, step),
        "checkpoint directory {}: no checkpoint of step {}; there are: {}", path_, step,
        steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", ")));
}

LoadedCheckpoint CheckpointDirectory::load(std::int64_t step) const {
  require_step(step);
  return read_folder(step, "");
}

std::optional<CheckpointOrigin> CheckpointDirectory::newest_origin() const {
  const auto steps = list();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      auto manifest = read_manifest(*step);
      return CheckpointOrigin{*step, std::move(manifest.run), std::move(manifest.metadata)};
    } catch (const std::exception&) {
      // A load says why it cannot be used.
    }
  }
  return std::nullopt;
}

}  // namespace paceline
