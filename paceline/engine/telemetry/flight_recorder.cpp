#include "paceline/engine/telemetry/flight_recorder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/timing.h"
#include "paceline/engine/telemetry/flight_file.h"
#include "paceline/engine/telemetry/record_file.h"

namespace paceline {
namespace {

using flight::Operation;
using Word = std::atomic_ref<std::uint64_t>;

constexpr std::uint64_t kEmptyGroup = 1;

std::int64_t read_clock(clockid_t clock) noexcept {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

// Makes the directory for this user alone, and missing parents with the usual permissions.
void make_directory(const std::string& directory) {
  std::error_code error;
  const auto parent = std::filesystem::path(directory).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (!error && mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    error = {errno, std::generic_category()};
  }
  if (error) {
    fail(ErrorCode::kSystem, "making the directory of flight files {}: {}", directory,
         error.message());
  }
}

std::string path_in(const FlightOptions& options) {
  return options.directory + "/" + flight_file_name(options.rank);
}

// A record is composed of words and stored word by word. If its fields were stored one by one and
// then read as words for the check word, the reads would wait for the store buffer, three times as
// long as everything else takes.
using Words = std::array<std::uint64_t, flight::kNumWords>;

Words words_of(const Operation& place) noexcept {
  Words words;
  std::memcpy(words.data(), &place, sizeof place);
  return words;
}

// Sets the field at `offset` of an Operation.
template <class T>
[[gnu::always_inline]] inline void put(Words& words, std::size_t offset, T value) noexcept {
  constexpr auto kMask = ~std::uint64_t{0} >> (64 - 8 * sizeof(T));
  const std::size_t shift = offset % sizeof(std::uint64_t) * 8;
  auto& word = words[offset / sizeof(std::uint64_t)];
  word = (word & ~(kMask << shift)) | (static_cast<std::uint64_t>(value) & kMask) << shift;
}

// Writes `words` to `place` and releases it. Other threads may read the stamp meanwhile, so the
// stamp is only accessed atomically. Requires: `place` is claimed.
[[gnu::always_inline]] inline void seal(Operation& place, Words& words) noexcept {
  const std::uint64_t stamp = Word(place.stamp).load(std::memory_order_relaxed) + 1;
  words[0] = stamp;
  put(words, offsetof(Operation, check), flight::check_of(words));
  auto* const to = reinterpret_cast<std::byte*>(&place);
  for (std::size_t i = 1; i < words.size(); ++i)
    std::memcpy(to + i * sizeof words[i], &words[i], sizeof words[i]);
  Word(place.stamp).store(stamp, std::memory_order_release);
}

}  // namespace

FlightRecorder::FlightRecorder(const FlightOptions& options)
    : options_(options), path_(path_in(options)) {
  make_directory(options_.directory);
  FileDraft draft(path_, 0600);
  struct stat status {};
  fstat(draft.fd(), &status);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  file_ = map_draft<flight::File>(draft, "the flight file", MAP_POPULATE);
  describe_process();
  draft.publish();
}

void FlightRecorder::describe_process() {
  auto& header = file_->header;
  header.magic = flight::kMagic;
  header.version = flight::kVersion;
  header.num_operations = flight::kNumOperations;
  header.num_groups = flight::kNumGroups;
  header.rank = options_.rank;
  header.world_size = options_.world_size;
  header.generation = static_cast<std::uint32_t>(options_.generation);
  name_this_process(header);
  header.opened = record_time();
  header.opened_wall = read_clock(CLOCK_REALTIME);
  put_text(header.job, options_.job);
  for (auto& group : file_->groups) group.stamp = kEmptyGroup;
}

FlightRecorder::~FlightRecorder() {
  if (owner_.is_this()) {
    auto& header = file_->header;
    FlightEnd end = FlightEnd::kInOrder;
    if (header.failure_length > 0) {
      end = FlightEnd::kFailed;
    } else if (std::uncaught_exceptions() > 0) {
      end = FlightEnd::kException;
    }
    header.end = static_cast<std::uint32_t>(end);
    if (end == FlightEnd::kInOrder && !options_.keep && is_own_file()) unlink(path_.c_str());
  }
  munmap(file_, sizeof(flight::File));
}

// Whether the path still names this recorder's file; a newer group of this rank may have replaced
// it.
bool FlightRecorder::is_own_file() const {
  struct stat status {};
  return lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

std::uint32_t FlightRecorder::add_group(std::string_view name, std::uint64_t hash, int rank,
                                        int world_size, int generation) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t number = num_groups_++;
  auto& group = file_->groups[number % flight::kNumGroups];
  const std::uint64_t whole = std::uint64_t{number} << 1;
  Word(group.stamp).store(whole | 1, std::memory_order_release);
  group.hash = hash;
  group.rank = rank;
  group.world_size = world_size;
  group.generation = static_cast<std::uint32_t>(generation);
  group.name_length = static_cast<std::uint32_t>(std::min(name.size(), flight::kNameBytes));
  std::memcpy(group.name.data(), name.data(), group.name_length);
  if (options_.timeline) options_.timeline->name_group(number, name);
  Word(group.stamp).store(whole, std::memory_order_release);
  return number;
}

// ---- operations

Operation& FlightRecorder::slot_of(std::uint64_t id) const noexcept {
  return file_->operations[id % flight::kNumOperations];
}

void FlightRecorder::drop() noexcept {
  Word(file_->header.dropped).fetch_add(1, std::memory_order_relaxed);
}

FlightTicket FlightRecorder::enter(const FlightCall& call) noexcept {
  return begin(call, FlightState::kEntered, 0);
}

FlightTicket FlightRecorder::start(const FlightCall& call, std::uint32_t sequence) noexcept {
  return begin(call, FlightState::kStarted, sequence);
}

FlightTicket FlightRecorder::begin(const FlightCall& call, FlightState state,
                                   std::uint32_t sequence) noexcept {
  const FlightTicket ticket{Word(file_->header.next).fetch_add(1, std::memory_order_relaxed) + 1};
  Operation& place = slot_of(ticket.id);
  auto before = Word(place.stamp).load(std::memory_order_relaxed);
  const bool is_free = (before & 1) == 0 && before >> 8 < ticket.id;
  if (!is_free ||
      !Word(place.stamp)
           .compare_exchange_strong(before, ticket.id << 8 | 1, std::memory_order_acquire)) {
    drop();
    return {};
  }
  const std::uint64_t now = record_time();
  Words words{};
  put(words, offsetof(Operation, entered), now);
  put(words, offsetof(Operation, entered_wall), read_clock(CLOCK_REALTIME_COARSE));
  put(words, offsetof(Operation, started), state == FlightState::kStarted ? now : 0);
  put(words, offsetof(Operation, count), call.count);
  put(words, offsetof(Operation, group_hash), call.group_hash);
  put(words, offsetof(Operation, group), call.group);
  put(words, offsetof(Operation, sequence), sequence);
  put(words, offsetof(Operation, peer), call.peer);
  put(words, offsetof(Operation, tag), call.tag);
  put(words, offsetof(Operation, thread), this_thread());
  put(words, offsetof(Operation, op), call.op);
  put(words, offsetof(Operation, dtype), static_cast<std::uint8_t>(call.dtype));
  put(words, offsetof(Operation, reduce_op), call.reduce_op);
  put(words, offsetof(Operation, state), static_cast<std::uint8_t>(state));
  put(words, offsetof(Operation, asynchronous), static_cast<std::uint8_t>(call.asynchronous));
  seal(place, words);
  return ticket;
}

// Claims the slot of an operation; null if another thread is writing to the slot, or if a later
// operation has taken it (there are 1,024 slots).
Operation* FlightRecorder::claim(FlightTicket ticket) noexcept {
  if (ticket.id == 0) return nullptr;
  Operation& place = slot_of(ticket.id);
  auto stamp = Word(place.stamp).load(std::memory_order_relaxed);
  const bool is_own = stamp >> 8 == ticket.id && (stamp & 1) == 0;
  if (is_own &&
      Word(place.stamp).compare_exchange_strong(stamp, stamp + 1, std::memory_order_acquire)) {
    return &place;
  }
  drop();
  return nullptr;
}

void FlightRecorder::start(FlightTicket ticket, std::uint32_t sequence) noexcept {
  Operation* const place = claim(ticket);
  if (place == nullptr) return;
  Words words = words_of(*place);
  // The operation may have been entered on another thread, whose clock differs a little.
  put(words, offsetof(Operation, started), std::max(record_time(), place->entered));
  put(words, offsetof(Operation, sequence), sequence);
  put(words, offsetof(Operation, thread), this_thread());
  put(words, offsetof(Operation, state), static_cast<std::uint8_t>(FlightState::kStarted));
  seal(*place, words);
}

void FlightRecorder::finish(FlightTicket ticket, std::optional<ErrorCode> error) noexcept {
  Operation* const place = claim(ticket);
  if (place == nullptr) return;
  const std::uint64_t begin = std::max(place->entered, place->started);
  const std::uint64_t end = std::max(record_time(), begin);
  const auto state = error ? FlightState::kFailed : FlightState::kDone;
  const int code = error ? 1 + static_cast<int>(*error) : 0;
  Words words = words_of(*place);
  put(words, offsetof(Operation, ended), end);
  put(words, offsetof(Operation, state), static_cast<std::uint8_t>(state));
  put(words, offsetof(Operation, error), static_cast<std::uint8_t>(code));
  if (options_.timeline) {
    options_.timeline->add(SpanOperation{.op = place->op,
                                         .dtype = place->dtype,
                                         .count = place->count,
                                         .sequence = place->sequence,
                                         .group = place->group,
                                         .peer = place->peer,
                                         .failed = error.has_value()},
                           {begin, end});
  }
  seal(*place, words);
}

void FlightRecorder::note_failure(std::string_view text) noexcept {
  const std::lock_guard lock(mutex_);
  auto& header = file_->header;
  if (header.failure_length > 0) return;
  const std::size_t length = std::min(text.size(), header.failure.size());
  std::memcpy(header.failure.data(), text.data(), length);
  std::atomic_ref(header.failure_length)
      .store(static_cast<std::uint32_t>(length), std::memory_order_release);
}

}  // namespace paceline
