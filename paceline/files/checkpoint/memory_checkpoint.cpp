#include "paceline/files/checkpoint/memory_checkpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <type_traits>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/files/checkpoint/manifest.h"

namespace paceline {
namespace {

constexpr std::array<char, 8> kMagic = {'P', 'L', 'M', 'E', 'M', 'C', 'K', 'P'};
constexpr std::uint32_t kVersion = 2;
constexpr int kNumSlots = 2;
// The file is sparse, so that each slot has a fixed place, whatever the size of its checkpoint.
constexpr off_t kSlotBytes = off_t{1} << 40;
constexpr off_t kSealBytes = 4096;
constexpr std::uint64_t kMaxBytes = kSlotBytes - kSealBytes;
constexpr std::size_t kVerifiedAtOnce = 1 << 20;

off_t place_of(int slot) { return slot * kSlotBytes; }
off_t place_in(int slot, std::uint64_t position) {
  return place_of(slot) + kSealBytes + static_cast<off_t>(position);
}

void write_at(int fd, off_t offset, std::span<const std::byte> bytes, const std::string& path) {
  if (write_whole_at(fd, offset, bytes)) return;
  throw system_error(fmt::format("{}: cannot write {} more bytes", path, bytes.size()));
}

// Follows a symbolic link only if it is one of the kernel's, /proc/PID/fd/N.
Fd open_memory(const std::string& path) {
  constexpr mode_t kOwnersAlone = S_IRUSR | S_IWUSR;
  Fd file = path.starts_with("/proc/") ? Fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC))
                                       : open_to_write(path, O_RDWR | O_CREAT, kOwnersAlone);
  if (file) return file;
  fail(ErrorCode::kSystem, "memory checkpoint {}: cannot open: {}", path,
       describe_refusal(path, errno));
}

// Returns false when the file ends earlier or cannot be read.
bool read_at(int fd, off_t offset, std::span<std::byte> bytes) {
  return read_whole_at(fd, offset, bytes) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

// The first bytes of a slot, little-endian. The files follow at byte 4096, then the list: the count
// of files (u32), the number of each (u32), and the manifest.
struct MemoryCheckpoint::Seal {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t reserved = 0;
  std::uint64_t number = 0;  // of the save; a larger number is a newer save
  std::uint64_t file_bytes = 0;
  std::uint64_t list_bytes = 0;
  std::array<char, 32> list_digest{};
  std::array<char, 32> own{};  // the digest of all fields before it

  std::string digest_of_fields() const {
    return digest_of(std::as_bytes(std::span(this, 1)).first(offsetof(Seal, own)));
  }
  void close() { std::ranges::copy(digest_of_fields(), own.begin()); }
  bool is_whole() const {
    return magic == kMagic && version == kVersion && std::ranges::equal(digest_of_fields(), own) &&
           list_bytes <= 2 * kManifestLimit && file_bytes <= kMaxBytes - list_bytes;
  }
};

MemoryCheckpoint::MemoryCheckpoint(std::string path)
    : path_(std::move(path)), file_(open_memory(path_)) {
  static_assert(std::is_trivially_copyable_v<Seal> && sizeof(Seal) == 104);
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian port must swap here");
}

void MemoryCheckpoint::lock() {
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) throw system_error(path_ + ": cannot lock");
  fail(ErrorCode::kInvalid,
       "memory checkpoint {}: another job, or another checkpointer of this job, uses this memory; "
       "give each checkpointer a path of its own",
       path_);
}

std::array<std::int64_t, 2> MemoryCheckpoint::identity() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw system_error(path_ + ": cannot stat");
  return {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino)};
}

std::optional<MemoryCheckpoint::Seal> MemoryCheckpoint::seal_of(int slot) const {
  Seal seal;
  if (!read_at(file_.get(), place_of(slot), std::as_writable_bytes(std::span(&seal, 1)))) {
    return std::nullopt;
  }
  return seal.is_whole() ? std::optional(seal) : std::nullopt;
}

std::vector<SealedSlot> MemoryCheckpoint::sealed() const {
  std::vector<SealedSlot> all;
  for (int slot = 0; slot < kNumSlots; ++slot) {
    const auto seal = seal_of(slot);
    if (!seal) continue;
    try {
      std::vector<std::byte> list(seal->list_bytes);
      if (!read_at(file_.get(), place_in(slot, seal->file_bytes), list) ||
          !std::ranges::equal(digest_of(list), seal->list_digest)) {
        fail(ErrorCode::kCorrupt, "its list is damaged");
      }
      SealedSlot found{.slot = slot, .number = seal->number, .manifest = {}, .id = {}, .files = {}};
      ByteReader reader(list);
      found.files.resize(reader.get_count<std::uint32_t>(sizeof(std::uint32_t)));
      for (std::uint32_t& file : found.files) file = reader.get<std::uint32_t>();
      const auto text = reader.take(reader.remaining());
      found.id = digest_of(text);
      found.manifest = parse_manifest(to_string(text), path_);
      for (const std::uint32_t file : found.files)
        check(file < found.manifest.files.size(),
              "its list names file {}, which is not in the manifest", file);
      all.push_back(std::move(found));
    } catch (const Error& error) {
      log::error(fmt::format("memory checkpoint {}: skipped save {}: {}", path_, seal->number,
                             error.what()));
    }
  }
  std::ranges::sort(all, std::ranges::greater(), &SealedSlot::number);
  return all;
}

OpenSlot MemoryCheckpoint::open_older() {
  const auto number = [&](int slot) {
    const auto seal = seal_of(slot);
    return seal ? seal->number : 0;
  };
  const std::array numbers = {number(0), number(1)};
  const int older = numbers[0] <= numbers[1] ? 0 : 1;
  unseal(older);
  return {.slot = older, .newest = std::max(numbers[0], numbers[1])};
}

void MemoryCheckpoint::unseal(int slot) {
  const Seal broken{.magic = {}};
  write_at(file_.get(), place_of(slot), std::as_bytes(std::span(&broken, 1)), path_);
}

void MemoryCheckpoint::forget() {
  for (int slot = 0; slot < kNumSlots; ++slot) {
    if (seal_of(slot)) unseal(slot);
  }
}

void MemoryCheckpoint::write(int slot, std::uint64_t position, std::span<const std::byte> bytes) {
  check(bytes.size() <= kMaxBytes && position <= kMaxBytes - bytes.size(),
        "memory checkpoint {}: it has no room for more than {} bytes", path_, kMaxBytes);
  write_at(file_.get(), place_in(slot, position), bytes, path_);
}

void MemoryCheckpoint::seal(int slot, std::uint64_t number, const std::vector<std::uint32_t>& files,
                            const Manifest& manifest) {
  Seal seal{.number = number};
  ByteWriter list;
  list.put(static_cast<std::uint32_t>(files.size()));
  for (const std::uint32_t file : files) {
    list.put(file);
    seal.file_bytes += manifest.files.at(file).size;
  }
  list.put_bytes(as_bytes(to_json(manifest)));
  seal.list_bytes = list.bytes().size();
  write(slot, seal.file_bytes, list.bytes());
  std::ranges::copy(digest_of(list.bytes()), seal.list_digest.begin());
  seal.close();
  write_at(file_.get(), place_of(slot), std::as_bytes(std::span(&seal, 1)), path_);
}

void MemoryCheckpoint::read(const SealedSlot& sealed, std::uint32_t file, std::uint64_t position,
                            std::span<std::byte> bytes) const {
  for (const std::uint32_t before : sealed.files) {
    if (before == file) break;
    position += sealed.manifest.files.at(before).size;
  }
  if (read_at(file_.get(), place_in(sealed.slot, position), bytes)) return;
  fail(ErrorCode::kCorrupt, "memory checkpoint {}: the file ends before byte {} of slot {}", path_,
       position + bytes.size(), sealed.slot);
}

bool MemoryCheckpoint::is_whole(const SealedSlot& sealed, std::uint32_t file) const {
  const ManifestFile& entry = sealed.manifest.files.at(file);
  Digest digest;
  std::vector<std::byte> piece;
  try {
    for (std::uint64_t done = 0; done < entry.size; done += piece.size()) {
      piece.resize(std::min<std::uint64_t>(entry.size - done, kVerifiedAtOnce));
      read(sealed, file, done, piece);
      digest.update(piece);
    }
    if (digest.hex() == entry.digest) return true;
  } catch (const Error& error) {
    log::error(error.what());
  }
  log::error(fmt::format("memory checkpoint {}: step {}: {} is damaged", path_,
                         sealed.manifest.step, entry.name));
  return false;
}

}  // namespace paceline
