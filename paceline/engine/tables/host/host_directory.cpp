#include "paceline/engine/tables/host/host_directory.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/host.h"

namespace paceline::tables {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kPoll(5);
// How long a worker waits for the copy of another one before it makes a copy itself.
constexpr std::chrono::milliseconds kPatience(300);

bool is_alive(std::int32_t pid, std::uint64_t start_ticks) {
  const auto status = process_status(pid);
  return status && status->start_ticks == start_ticks;
}

}  // namespace

HostDirectory::HostDirectory(std::shared_ptr<Store> store, std::string table)
    : store_(std::move(store)),
      table_(std::move(table)),
      key_(fmt::format("tables/{}/{}", host_token(), table_)) {}

std::string HostDirectory::text_of(const Place& place) {
  std::string text = fmt::format("{} {}", place.epoch, place.number);
  for (const Holder& holder : place.holders)
    text += fmt::format(" {} {} {}", holder.pid, holder.descriptor, holder.start_ticks);
  return text;
}

HostDirectory::Place HostDirectory::parse(const std::string& text) const {
  std::istringstream fields(text);
  Place place;
  if (!(fields >> place.epoch >> place.number))
    fail(ErrorCode::kCorrupt, "table '{}': its entry in the job's store is damaged", table_);
  for (Holder holder; fields >> holder.pid >> holder.descriptor >> holder.start_ticks;)
    place.holders.push_back(holder);
  return place;
}

HostDirectory::Holder HostDirectory::self(const TableMemory& memory) {
  const auto status = process_status(getpid());
  return {getpid(), memory.descriptor(), status ? status->start_ticks : 0};
}

MemoryPointer HostDirectory::map(const Place& place) {
  for (const Holder& holder : place.holders) {
    if (!is_alive(holder.pid, holder.start_ticks)) continue;
    const std::string path = fmt::format("/proc/{}/fd/{}", holder.pid, holder.descriptor);
    Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!file) {
      if (errno == EACCES || errno == EPERM)
        throw system_error("opening a table's memory, " + path);
      continue;
    }
    try {
      auto memory = TableMemory::of_file(std::move(file));
      if (memory->header().number == place.number) return memory;
    } catch (const Error&) {
      // The process has closed the memory, and the descriptor is another file.
    }
  }
  return nullptr;
}

std::string HostDirectory::read() const {
  return store_->check({key_}) ? store_->get(key_) : std::string();
}

void HostDirectory::add_self(const TableMemory& memory) const {
  for (std::string before = read();;) {
    Place place = parse(before);
    if (place.number != memory.header().number) return;  // the table has moved on
    std::erase_if(place.holders, [](const Holder& holder) {
      return !is_alive(holder.pid, holder.start_ticks) || holder.pid == getpid();
    });
    place.holders.push_back(self(memory));
    const std::string wanted = text_of(place);
    const std::string found = store_->compare_set(key_, before, wanted);
    if (found == wanted) return;
    before = found;
  }
}

MemoryPointer HostDirectory::find_or_make(const Settings& settings, Deadline deadline) const {
  for (;; std::this_thread::sleep_for(kPoll)) {
    const std::string before = read();
    std::uint64_t epoch = 0;
    if (!before.empty()) {
      const Place place = parse(before);
      epoch = place.epoch;
      MemoryPointer memory = map(place);
      const bool is_open =
          memory && memory->header().state == static_cast<std::uint32_t>(TableState::kOpen);
      if (is_open) {
        const std::string difference = settings.difference(memory->settings());
        check(difference.empty(), "open_rows: table '{}' is open with other options: {}", table_,
              difference);
        add_self(*memory);
        return memory;
      }
      if (memory && !deadline.expired()) continue;  // the table is moving
    }
    MemoryPointer memory = TableMemory::make(settings, epoch + 1);
    const std::string wanted =
        text_of({memory->header().epoch, memory->header().number, {self(*memory)}});
    if (store_->compare_set(key_, before, wanted) == wanted) return memory;
  }
}

MemoryPointer HostDirectory::next(const TableMemory& closed, MemoryPointer successor) const {
  for (const Deadline patience = Deadline::after(kPatience);; std::this_thread::sleep_for(kPoll)) {
    const std::string before = read();
    const Place place = parse(before);
    if (place.epoch > closed.header().epoch) {
      if (MemoryPointer memory = map(place)) {
        add_self(*memory);
        return memory;
      }
    }
    if (successor) {
      const std::string wanted =
          text_of({successor->header().epoch, successor->header().number, {self(*successor)}});
      if (store_->compare_set(key_, before, wanted) == wanted) return successor;
    } else if (patience.expired()) {
      return nullptr;
    }
  }
}

}  // namespace paceline::tables
