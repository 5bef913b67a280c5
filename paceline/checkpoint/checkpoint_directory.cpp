#include "paceline/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <random>
#include <set>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "paceline/checkpoint/digest.h"
#include "paceline/checkpoint/manifest.h"
#include "paceline/checkpoint/plain_file.h"
#include "paceline/checkpoint/safetensors.h"
#include "paceline/core/bytes.h"
#include "paceline/core/check.h"
#include "paceline/core/deadline.h"
#include "paceline/core/log.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLockPause{50};
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".tmp-";
constexpr const char* kShardFile = "state-00000-of-00001.safetensors";

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0) return std::nullopt;
  return name == fmt::format("step-{:08}", step) ? std::optional(step) : std::nullopt;
}

std::string temporary_name(const std::string& folder) {
  std::random_device random;
  return fmt::format("{}{}{:08x}{:08x}", folder, kTemporary, random(), random());
}

std::vector<std::string> names_in(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) {
    throw Error(ErrorCode::kSystem, fmt::format("{}: cannot list: {}", path, error.message()));
  }
  return names;
}

void check_folder(const std::string& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) throw system_error(folder + ": cannot stat");
  if (!S_ISDIR(status.st_mode)) fail(ErrorCode::kCorrupt, "{}: not a directory", folder);
}

void check_digest(std::span<const std::byte> bytes, const ManifestFile& file,
                  const std::string& path) {
  if (bytes.size() != file.size) {
    fail(ErrorCode::kCorrupt, "{}: expected {} bytes, found {}", path, file.size, bytes.size());
  }
  const auto found = digest_of(bytes);
  if (found != file.digest) {
    fail(ErrorCode::kCorrupt, "{}: XXH3-128 digest: expected {}, found {}", path, file.digest,
         found);
  }
}

// False when another process has it at the deadline.
bool take_lock(const Fd& file, const std::string& path, Deadline deadline) {
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) throw system_error(path + ": cannot lock");
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(kLockPause);  // nothing says that a lock is free
  }
  return true;
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string path, CheckpointDirectoryOptions options,
                                         FileSystem& files)
    : path_(std::move(path)), options_(options), files_(files) {
  check(options_.keep >= 1, "checkpoint directory {}: keep is {}, it must be at least 1", path_,
        options_.keep);
  if (options_.read_only) return;
  std::error_code error;
  if (fs::create_directories(path_, error)) {
    sync_directory(files_, fs::absolute(path_).lexically_normal().parent_path().string());
  }
  if (error) {
    fail(ErrorCode::kSystem, "checkpoint directory {}: cannot create: {}", path_, error.message());
  }
  lock();
  remove_leftovers();
}

void CheckpointDirectory::lock() {
  const std::string path = path_ + "/.lock";
  lock_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock_) throw system_error(path + ": cannot open");
  if (!take_lock(lock_, path, Deadline::after(options_.lock_timeout))) {
    std::array<char, 32> owner{};
    const auto size = ::pread(lock_.get(), owner.data(), owner.size(), 0);
    const std::string_view pid(owner.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
    fail(ErrorCode::kInvalid,
         "checkpoint directory {}: another job (process {}) writes to it; give each job its own "
         "directory or wait for that one to end",
         path_, pid.empty() ? "unknown" : pid);
  }
  // For the message above only: the lock itself is the kernel's and ends with this process.
  const auto pid = std::to_string(::getpid());
  if (::ftruncate(lock_.get(), 0) != 0 ||
      ::pwrite(lock_.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    log::debug(path + ": cannot note the process id");
  }
}

std::string CheckpointDirectory::folder_of(std::int64_t step) const {
  return fmt::format("{}/step-{:08}", path_, step);
}

void CheckpointDirectory::remove_leftovers() noexcept try {
  for (const auto& name : names_in(path_)) {
    const auto cut = name.find(kTemporary);
    if (cut != std::string::npos && step_of(name.substr(0, cut))) {
      log::info(fmt::format("{}/{}: removing what a dead writer left", path_, name));
      remove_folder(path_ + "/" + name);
    }
  }
} catch (const std::exception& error) {
  log::warning(error.what());
}

void CheckpointDirectory::save(std::int64_t step, const Snapshot& snapshot) {
  check(!options_.read_only, "checkpoint directory {}: save on a read-only one", path_);
  check(step >= 0, "checkpoint directory {}: step {} is negative", path_, step);
  const auto temporary = temporary_name(folder_of(step));
  try {
    write_folder(temporary, step, snapshot);
    commit(temporary, step);
  } catch (...) {
    remove_folder(temporary);
    throw;
  }
  prune(step);
}

void CheckpointDirectory::write_folder(const std::string& folder, std::int64_t step,
                                       const Snapshot& snapshot) {
  const auto layout = plan_safetensors(snapshot.tensors, snapshot.metadata);
  std::vector<std::span<const std::byte>> parts = {as_bytes(layout.head)};
  for (const auto index : layout.order) parts.push_back(snapshot.tensors[index].bytes);

  ManifestFile file{.name = kShardFile};
  Digest digest;
  for (const auto part : parts) {
    digest.update(part);
    file.size += part.size();
  }
  file.digest = digest.hex();
  const auto manifest = to_json({.step = step,
                                 .world_size = snapshot.world_size,
                                 .files = {file},
                                 .metadata = snapshot.metadata});

  if (files_.mkdir(folder, 0755) != 0) {
    throw system_error(fmt::format("{}: cannot create (the checkpoint needs {} bytes)", folder,
                                   file.size + manifest.size()));
  }
  write_plain_file(files_, folder + "/" + kShardFile, parts);
  const std::array manifest_parts = {as_bytes(manifest)};
  write_plain_file(files_, folder + "/" + kManifestFile, manifest_parts);
  sync_directory(files_, folder);
}

void CheckpointDirectory::commit(const std::string& temporary, std::int64_t step) {
  const auto folder = folder_of(step);
  if (!fs::exists(fs::symlink_status(folder))) {
    if (files_.rename(temporary, folder) != 0) {
      throw system_error(fmt::format("{}: cannot rename to {}", temporary, folder));
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
    replaced = temporary_name(folder);
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

void CheckpointDirectory::prune(std::int64_t newest) noexcept try {
  auto steps = list();
  std::erase_if(steps, [&](std::int64_t step) { return step > newest; });
  const auto keep = static_cast<std::size_t>(options_.keep);
  const auto surplus = steps.size() > keep ? steps.size() - keep : 0;
  for (const auto step : std::span(steps).first(surplus)) {
    // Under its own name a half-removed folder would look like a checkpoint.
    const auto folder = folder_of(step);
    const auto doomed = temporary_name(folder);
    if (files_.rename(folder, doomed) == 0) {
      remove_folder(doomed);
    } else {
      log::warning(system_error(folder + ": cannot rename for removal").what());
    }
  }
} catch (const std::exception& error) {
  log::warning(error.what());
}

void CheckpointDirectory::remove_folder(const std::string& folder) noexcept try {
  if (!fs::exists(fs::symlink_status(folder))) return;
  bool removed = true;
  if (fs::is_directory(fs::symlink_status(folder))) {
    for (const auto& name : names_in(folder)) {
      removed = files_.unlink(folder + "/" + name) == 0 && removed;
    }
    removed = files_.rmdir(folder) == 0 && removed;
  } else {
    removed = files_.unlink(folder) == 0;
  }
  if (!removed) log::warning(system_error(folder + ": cannot remove").what());
} catch (const std::exception& error) {
  log::warning(error.what());
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

LoadedCheckpoint CheckpointDirectory::read_folder(std::int64_t step) const {
  const auto folder = folder_of(step);
  check_folder(folder);
  const auto manifest_path = folder + "/" + kManifestFile;
  const auto text = to_string(read_plain_file(files_, manifest_path, kManifestLimit));
  auto manifest = parse_manifest(text, manifest_path);
  if (manifest.step != step) {
    fail(ErrorCode::kCorrupt, "{}: of step {}, expected {}", manifest_path, manifest.step, step);
  }
  LoadedCheckpoint loaded;
  loaded.step = step;
  loaded.snapshot.metadata = std::move(manifest.metadata);
  loaded.snapshot.world_size = manifest.world_size;
  std::set<std::string> names;
  for (const auto& file : manifest.files) {
    const auto path = folder + "/" + file.name;
    loaded.storage.push_back(read_plain_file(files_, path, file.size));
    check_digest(loaded.storage.back(), file, path);
    for (auto& tensor : parse_safetensors(loaded.storage.back(), path).tensors) {
      if (!names.insert(tensor.name).second) {
        fail(ErrorCode::kCorrupt, "{}: tensor \"{}\" is in an earlier file too", path, tensor.name);
      }
      loaded.snapshot.tensors.push_back(std::move(tensor));
    }
  }
  return loaded;
}

std::optional<LoadedCheckpoint> CheckpointDirectory::load_newest() const {
  std::vector<RefusedCheckpoint> refused;
  const auto steps = list();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      auto loaded = read_folder(*step);
      loaded.refused = std::move(refused);
      return loaded;
    } catch (const std::exception& error) {  // also bad_alloc: a size is a stranger's word
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

LoadedCheckpoint CheckpointDirectory::load(std::int64_t step) const {
  const auto steps = list();
  check(std::ranges::binary_search(steps, step),
        "checkpoint directory {}: no checkpoint of step {}; there are: {}", path_, step,
        steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", ")));
  return read_folder(step);
}

}  // namespace paceline
