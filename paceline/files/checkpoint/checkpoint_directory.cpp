#include "paceline/files/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/manifest.h"
#include "paceline/files/checkpoint/writer_claim.h"

namespace paceline {

namespace {

constexpr std::uint64_t kMarkLimit = 64 << 10;
constexpr const char* kMarkName = "/.run";

}  // namespace

std::optional<RunMark> read_run_mark(const std::string& directory, FileSystem& files) try {
  const auto path = directory + kMarkName;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path))) return std::nullopt;
  const auto json = parse_strict_json(to_string(read_plain_file(files, path, kMarkLimit)), path, 1);
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
  // The launcher's name for a job may be invalid UTF-8.
  const auto text = json_text(json) + "\n";
  const auto path = directory + kMarkName;
  const auto temporary = workspace + kMarkName;
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

// The steps before the newest `keep`.
std::span<const std::int64_t> surplus_of(std::span<const std::int64_t> steps, int keep) {
  return steps.first(static_cast<std::size_t>(std::max(std::int64_t{0}, std::ssize(steps) - keep)));
}

// If none of the newest `keep` steps is sound, returns the newest earlier step that is.
std::optional<std::int64_t> newest_before_kept(
    std::span<const std::int64_t> steps, int keep,
    const std::function<bool(std::int64_t step)>& is_sound) {
  const auto surplus = surplus_of(steps, keep);
  if (surplus.empty() || std::any_of(steps.rbegin(), steps.rbegin() + keep, is_sound)) return {};
  const auto found = std::find_if(surplus.rbegin(), surplus.rend(), is_sound);
  return found != surplus.rend() ? std::optional(*found) : std::nullopt;
}

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

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string path, CheckpointDirectoryOptions options)
    : CheckpointDirectory(std::move(path), std::move(options), FileSystem::real()) {}

CheckpointDirectory::~CheckpointDirectory() = default;

std::optional<RunMark> CheckpointDirectory::mark() const { return read_run_mark(path_, files_); }

const std::string& CheckpointDirectory::workspace() const { return claim_->workspace(); }

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
  claim_ = std::make_unique<WriterClaim>(path_, options_.writer, options_.lock_timeout, files_);
}

std::string CheckpointDirectory::folder_of(std::int64_t step) const {
  return fmt::format("{}/{}", path_, step_name(step));
}

// A new name in the workspace. A rename to or from it fails once another writer has taken over.
std::string CheckpointDirectory::temporary_folder(std::int64_t step) const {
  return fmt::format("{}/{}.tmp-{}", claim_->workspace(), step_name(step), random_hex(8));
}

// Error(kInvalid) when the directory was opened for reading only.
const WriterClaim& CheckpointDirectory::claim() const {
  check(claim_ != nullptr, "checkpoint directory {}: it was opened for reading only", path_);
  return *claim_;
}

// Rethrows the current Error of a change to the directory. If the cause is that another writer has
// taken over, throws Error(kAborted) instead.
void CheckpointDirectory::rethrow() const {
  if (claim_) claim_->check_held();
  throw;
}

void CheckpointDirectory::set_mark(const RunMark& mark) try {
  write_run_mark(path_, claim().workspace(), mark, files_);
} catch (const Error&) {
  rethrow();
}

// The commit, and why one checkpoint can be loaded at any moment
//
// A *temporary folder* is one in the writer's workspace; a *committed* one has the name
// DIR/step-N. A save takes these steps, each of which ends before the next begins:
//
//   1. Every rank writes its file into the temporary folder and syncs it (PlainFileWriter::finish),
//      then reports its digest to rank 0 (CheckpointTeam::write_together).
//   2. Rank 0 writes the manifest, which has these digests, and syncs it.
//   3. Rank 0 syncs the temporary folder: the names of the files are on the disk.
//   4. Rank 0 renames the folder to DIR/step-N. This is the commit.
//   5. Rank 0 syncs DIR. From here the save is acknowledged.
//   6. Rank 0 removes older checkpoints: it renames each into the workspace, then deletes it there.
//
// Invariants:
//
//   (a) A committed folder is complete. It gets its name in step 4, after steps 1 to 3 have put
//       everything in it on the disk, and nothing in it changes afterwards. A kill before step 4
//       leaves only a temporary folder, which the next writer removes and no reader looks at.
//   (b) A reader sees the old set of checkpoints or the new one, because a rename is one step. The
//       one exception: a checkpoint of the same step is to be replaced on a file system that cannot
//       swap two names. The old one is then renamed away first, and a kill between the two
//       renames costs both checkpoints of that step, but none of another step.
//   (c) An acknowledged checkpoint survives a power cut: its bytes by (a), its name by step 5. A
//       power cut between steps 4 and 5 leaves the folder under either name, whole in both cases.
//   (d) No acknowledged checkpoint is removed before a newer one is acknowledged, because step 6
//       follows step 5. On a full disk that order is not possible: make_room() removes older
//       checkpoints first, but never the newest one that verifies. Later saves then remove one
//       checkpoint before they write, as long as at least one stays.
//   (e) A half-removed checkpoint has no committed name, because it loses its name before its first
//       file. The rename of a removal is not synced. If a file system brings the name back after a
//       power cut, but not all of the files, the checks of (g) refuse the folder.
//   (f) Only the newest writer commits or removes. Each of its changes is a rename out of its
//       workspace or into it, and its successor takes the whole workspace away first
//       (writer_claim.h). A writer that was frozen at any moment then fails in its next rename,
//       without any check before the change.
//   (g) Damage on the disk is detected. The manifest contains its own digest and the digest of each
//       file's checksums, and each checksum is the CRC of a chunk. A load verifies all that it
//       reads before it uses any of it; if that fails, it takes an older checkpoint.
void CheckpointDirectory::save_files(std::int64_t step, const WriteFiles& write) try {
  check(step >= 0, "checkpoint directory {}: step {} is negative", path_, step);
  claim().check_held();
  if (room_) prune(step, std::max(1, *room_ - 1));
  // prune() may have kept one more: the newest checkpoint without infinities and NaNs.
  if (room_ > 1 && std::ssize(list_up_to(step)) >= *room_) make_room(step);
  bool was_full = false;
  for (bool is_saved = false; !is_saved;) {
    const auto temporary = temporary_folder(step);
    try {
      if (files_.mkdir(temporary, 0755) != 0) refuse(fmt::format("{}: cannot create", temporary));
      commit(temporary, step, write(temporary));
      is_saved = true;
    } catch (const DiskFull&) {
      remove_folder(temporary);
      if (!make_room(step)) throw;
      was_full = true;
    } catch (...) {
      remove_folder(temporary);
      throw;
    }
  }
  if (was_full) note_room(step);
  prune(step, options_.keep);
} catch (const Error&) {
  rethrow();
}

// Removes the oldest checkpoint other than the newest one that verifies and the newest one without
// infinities and NaNs. Returns false if none verifies, or if no other one could be removed.
bool CheckpointDirectory::make_room(std::int64_t newest) {
  const auto steps = list_up_to(newest);
  const auto whole =
      std::find_if(steps.rbegin(), steps.rend(), [&](std::int64_t step) { return verifies(step); });
  if (whole == steps.rend()) return false;
  const auto finite = std::find_if(steps.rbegin(), steps.rend(),
                                   [&](std::int64_t step) { return is_finite(step); });
  return std::ranges::any_of(steps, [&](const std::int64_t& step) {
    const bool is_spared = step == *whole || (finite != steps.rend() && step == *finite);
    return !is_spared && remove_checkpoint(step);
  });
}

// Called after a save that had to make room: records how many checkpoints the disk holds.
void CheckpointDirectory::note_room(std::int64_t newest) {
  room_ = static_cast<int>(list_up_to(newest).size());
  log::warning(
      fmt::format("checkpoint directory {}: the disk is full: there is room for {} checkpoints, "
                  "too few to keep "
                  "{} and write a new one; from step {} on the oldest is removed before each save",
                  path_, *room_, options_.keep, newest));
}

// Steps 2 to 5 of the protocol above.
void CheckpointDirectory::commit(const std::string& temporary, std::int64_t step,
                                 const Manifest& manifest) {
  const std::string text = to_json(manifest);
  const std::array parts = {as_bytes(text)};
  write_plain_file(files_, temporary + "/" + kManifestFile, parts);
  sync_directory(files_, temporary);
  const auto folder = folder_of(step);
  if (!fs::exists(fs::symlink_status(folder))) {
    if (files_.rename(temporary, folder) != 0) {
      refuse(fmt::format("{}: cannot rename to {}", temporary, folder));
    }
    sync_directory(files_, path_);
    return;
  }
  // A checkpoint of this step exists: exchange the two or, if the file system cannot, rename the
  // old one away first. See invariant (b).
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
      if (files_.rename(replaced, folder) != 0)
        log::error(fmt::format("{}: cannot rename back to {}", replaced, folder));
      throw system_error(fmt::format("{}: cannot rename to {}", temporary, folder), error_number);
    }
  }
  sync_directory(files_, path_);
  remove_folder(replaced);
}

void CheckpointDirectory::prune(std::int64_t newest, int keep) noexcept try {
  const auto steps = list_up_to(newest);
  const auto finite =
      newest_before_kept(steps, keep, [&](std::int64_t step) { return is_finite(step); });
  for (const auto step : surplus_of(steps, keep)) {
    if (step != finite) remove_checkpoint(step);
  }
} catch (const std::exception& error) {
  log::warning(error.what());
}

std::vector<std::int64_t> CheckpointDirectory::prune_to(int keep) try {
  check(keep >= 1, "checkpoint directory {}: keep is {}, it must be at least 1", path_, keep);
  claim().check_held();
  const auto steps = list();
  const auto whole =
      newest_before_kept(steps, keep, [&](std::int64_t step) { return verifies(step); });
  const auto finite =
      newest_before_kept(steps, keep, [&](std::int64_t step) { return is_finite(step); });
  std::vector<std::int64_t> removed;
  for (const std::int64_t step : surplus_of(steps, keep)) {
    if (step != whole && step != finite && remove_checkpoint(step)) removed.push_back(step);
  }
  return removed;
} catch (const Error&) {
  rethrow();
}

void CheckpointDirectory::remove_folder(const std::string& folder) noexcept {
  if (!remove_tree(files_, folder)) log::warning(system_error(folder + ": cannot remove").what());
}

// The steps up to `newest`. Later steps exist if the run continued from an older checkpoint.
std::vector<std::int64_t> CheckpointDirectory::list_up_to(std::int64_t newest) const {
  auto steps = list();
  std::erase_if(steps, [&](std::int64_t step) { return step > newest; });
  return steps;
}

// Renames the folder first: invariant (e).
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

bool CheckpointDirectory::is_finite(std::int64_t step) const noexcept try {
  return !read_manifest(step).metadata.contains(Manifest::kNotFinite);
} catch (const std::exception&) {
  return false;
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

std::optional<Manifest> CheckpointDirectory::newest_before(std::int64_t before,
                                                           const std::string& run,
                                                           const OnRefused& on_refused) const {
  const auto steps = list();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (*step >= before) continue;
    try {
      Manifest manifest = read_manifest(*step);
      if (run.empty() || manifest.run.empty() || manifest.run == run) return manifest;
      on_refused(*step,
                 fmt::format("{}: of run {}, expected {}", folder_of(*step), manifest.run, run));
    } catch (const std::exception& error) {  // bad_alloc as well: sizes come from an untrusted file
      on_refused(*step, error.what());
    }
  }
  return std::nullopt;
}

void CheckpointDirectory::require_step(std::int64_t step) const {
  const auto steps = list();
  check(std::ranges::binary_search(steps, step),
        "checkpoint directory {}: no checkpoint of step {}; existing steps: {}", path_, step,
        steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", ")));
}

}  // namespace paceline
