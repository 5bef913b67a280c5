#include "paceline/checkpoint/memory_checkpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <type_traits>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "paceline/checkpoint/digest.h"
#include "paceline/checkpoint/safetensors.h"
#include "paceline/core/bytes.h"
#include "paceline/core/check.h"
#include "paceline/core/io.h"
#include "paceline/core/log.h"

namespace paceline {
namespace {

constexpr std::array<char, 8> kMagic = {'P', 'L', 'M', 'E', 'M', 'C', 'K', 'P'};
constexpr std::uint32_t kVersion = 1;
constexpr int kNumSlots = 2;
// The file has holes, so that a snapshot of any size finds its slot in the same place.
constexpr off_t kSlotBytes = off_t{1} << 40;
constexpr off_t kSealBytes = 4096;

off_t place_of(int slot) { return slot * kSlotBytes; }

void write_at(int fd, off_t offset, std::span<const std::byte> bytes, const std::string& path) {
  if (write_whole_at(fd, offset, bytes)) return;
  throw system_error(fmt::format("{}: cannot keep {} more bytes", path, bytes.size()));
}

// False when the file ends earlier.
bool read_at(int fd, off_t offset, std::span<std::byte> bytes) {
  return read_whole_at(fd, offset, bytes) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

// The first bytes of a slot; little-endian. The snapshot, a safetensors file, follows at byte 4096.
struct MemoryCheckpoint::Seal {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t generation = 0;
  std::uint64_t number = 0;  // of the save: the larger is the newer
  std::int64_t step = 0;
  std::uint64_t bytes = 0;
  std::uint32_t world_size = 1;
  std::uint32_t reserved = 0;
  std::array<char, 32> digest{};  // of the snapshot's bytes
  std::array<char, 32> own{};     // of all before it

  std::string digest_of_fields() const {
    return digest_of(std::as_bytes(std::span(this, 1)).first(offsetof(Seal, own)));
  }
  void close() { std::ranges::copy(digest_of_fields(), own.begin()); }
  bool is_whole() const {
    return magic == kMagic && version == kVersion && std::ranges::equal(digest_of_fields(), own) &&
           bytes <= static_cast<std::uint64_t>(kSlotBytes - kSealBytes);
  }
};

MemoryCheckpoint::MemoryCheckpoint(std::string path)
    : path_(std::move(path)),
      file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR)) {
  static_assert(std::is_trivially_copyable_v<Seal> && sizeof(Seal) == 112);
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian port must swap here");
  if (!file_) throw system_error(fmt::format("memory checkpoint {}: cannot open", path_));
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) throw system_error(path_ + ": cannot lock");
  fail(ErrorCode::kInvalid,
       "memory checkpoint {}: another process keeps its state there; one rank of each host does, "
       "that with LOCAL_RANK=0",
       path_);
}

std::optional<MemoryCheckpoint::Seal> MemoryCheckpoint::seal_of(int slot) const {
  Seal seal;
  if (!read_at(file_.get(), place_of(slot), std::as_writable_bytes(std::span(&seal, 1)))) {
    return std::nullopt;
  }
  return seal.is_whole() ? std::optional(seal) : std::nullopt;
}

void MemoryCheckpoint::break_seal(int slot) {
  const Seal broken{.magic = {}};
  write_at(file_.get(), place_of(slot), std::as_bytes(std::span(&broken, 1)), path_);
}

void MemoryCheckpoint::forget() {
  for (int slot = 0; slot < kNumSlots; ++slot) {
    if (seal_of(slot)) break_seal(slot);
  }
}

void MemoryCheckpoint::save(std::int64_t step, int generation, const Snapshot& snapshot) {
  check(step >= 0, "memory checkpoint {}: step {} is negative", path_, step);
  const auto layout = plan_safetensors(snapshot.tensors, snapshot.metadata);
  const std::array seals = {seal_of(0), seal_of(1)};
  const auto number = [&](int slot) { return seals[slot] ? seals[slot]->number : 0; };
  const int slot = number(0) <= number(1) ? 0 : 1;

  break_seal(slot);
  Seal seal;
  seal.generation = static_cast<std::uint32_t>(generation);
  seal.number = std::max(number(0), number(1)) + 1;
  seal.step = step;
  seal.world_size = static_cast<std::uint32_t>(snapshot.world_size);
  Digest digest;
  const auto append = [&](std::span<const std::byte> part) {
    digest.update(part);
    write_at(file_.get(), place_of(slot) + kSealBytes + static_cast<off_t>(seal.bytes), part,
             path_);
    seal.bytes += part.size();
  };
  append(as_bytes(layout.head));
  for (const auto index : layout.order) append(snapshot.tensors[index].bytes);
  std::ranges::copy(digest.hex(), seal.digest.begin());
  seal.close();
  write_at(file_.get(), place_of(slot), std::as_bytes(std::span(&seal, 1)), path_);
}

std::optional<std::int64_t> MemoryCheckpoint::newest_step() const {
  const auto first = seal_of(0);
  const auto second = seal_of(1);
  if (!first && !second) return std::nullopt;
  if (!first || !second) return first ? first->step : second->step;
  return (first->number > second->number ? first : second)->step;
}

std::optional<LoadedCheckpoint> MemoryCheckpoint::read(int slot, const Seal& seal) const {
  LoadedCheckpoint loaded;
  loaded.step = seal.step;
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw system_error(path_ + ": cannot stat");
  const off_t begin = place_of(slot) + kSealBytes;
  if (begin + static_cast<off_t>(seal.bytes) > status.st_size) return std::nullopt;
  auto& bytes = loaded.storage;
  bytes.resize(seal.bytes);
  if (!read_at(file_.get(), begin, bytes)) return std::nullopt;
  if (!std::ranges::equal(digest_of(bytes), seal.digest)) return std::nullopt;
  Safetensors parsed = parse_safetensors(bytes, path_);
  loaded.snapshot.tensors = std::move(parsed.tensors);
  loaded.snapshot.metadata = std::move(parsed.metadata);
  loaded.snapshot.world_size = static_cast<int>(seal.world_size);
  return loaded;
}

std::optional<LoadedCheckpoint> MemoryCheckpoint::load_newest() const {
  std::vector<std::pair<int, Seal>> sealed;
  for (int slot = 0; slot < kNumSlots; ++slot) {
    if (const auto seal = seal_of(slot)) sealed.emplace_back(slot, *seal);
  }
  std::ranges::sort(sealed, std::ranges::greater(), [](const auto& s) { return s.second.number; });
  for (const auto& [slot, seal] : sealed) {
    auto loaded = read(slot, seal);
    if (loaded) return loaded;
    log::error(
        fmt::format("memory checkpoint {}: the snapshot of step {} is damaged", path_, seal.step));
  }
  return std::nullopt;
}

}  // namespace paceline
