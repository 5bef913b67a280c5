#include "paceline/engine/tables/host/table_memory.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <random>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/host.h"

namespace paceline::tables {

namespace {

[[noreturn]] void no_memory(std::size_t bytes) {
  throw system_error(
      fmt::format("no memory for a table of rows, which needs {} more", size_text(bytes)));
}

}  // namespace

std::shared_ptr<TableMemory> TableMemory::make(const Settings& settings, std::uint64_t epoch) {
  const TableLayout layout(settings);
  Fd file = make_sealed_file(layout.bytes);
  if (!file) no_memory(layout.bytes);
  Mapping mapping = Mapping::of_file(file, layout.bytes, Pages::kOnTouch);
  if (!mapping) no_memory(layout.bytes);
  std::shared_ptr<TableMemory> memory(
      new TableMemory(std::move(file), std::move(mapping), settings));
  memory->allocate(0, layout.entries);  // new pages are zero
  TableHeader& header = memory->header();
  std::random_device random;
  header.number = std::uint64_t{random()} << 32 | random();
  header.epoch = epoch;
  header.settings = settings;
  header.lr = std::bit_cast<std::uint64_t>(settings.lr);
  header.state = static_cast<std::uint32_t>(TableState::kOpen);
  header.magic = TableHeader::kMagic;
  return memory;
}

std::shared_ptr<TableMemory> TableMemory::of_file(Fd file) {
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0 || !is_sealed_file(file, sizeof(TableHeader)))
    fail(ErrorCode::kCorrupt, "a table's memory is not a sealed file");
  Settings settings;
  std::uint64_t magic = 0;
  {
    const Mapping head = Mapping::of_file(file, sizeof(TableHeader), Pages::kOnTouch);
    if (!head) throw system_error("mapping a table");
    const auto& header = *reinterpret_cast<const TableHeader*>(head.data());
    magic = header.magic;
    settings = header.settings;
  }
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (magic != TableHeader::kMagic || TableLayout(settings).bytes != bytes)
    fail(ErrorCode::kCorrupt, "the memory of a table was made by another version of Paceline");
  Mapping mapping = Mapping::of_file(file, bytes, Pages::kOnTouch);
  if (!mapping) throw system_error(fmt::format("mapping a table of {}", size_text(bytes)));
  return std::shared_ptr<TableMemory>(
      new TableMemory(std::move(file), std::move(mapping), settings));
}

void TableMemory::allocate(std::size_t offset, std::size_t bytes) const {
  constexpr std::size_t kPage = 4096;
  const std::size_t begin = offset / kPage * kPage;
  const std::size_t end = std::min(offset + bytes, layout_.bytes);
  if (!populate_pages(mapping_.data() + begin, end - begin)) no_memory(end - begin);
}

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
  std::optional<Error> refused;  // perhaps about a descriptor that is another file now
  for (const Holder& holder : place.holders) {
    if (!is_alive(holder.pid, holder.start_ticks)) continue;
    const std::string path = fmt::format("/proc/{}/fd/{}", holder.pid, holder.descriptor);
    Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!file) {
      if (errno == EACCES || errno == EPERM)
        refused = system_error("opening a table's memory, " + path);
      continue;
    }
    try {
      auto memory = TableMemory::of_file(std::move(file));
      if (memory->header().number == place.number) return memory;
    } catch (const Error&) {
      // The process has closed the memory, and the descriptor is another file.
    }
  }
  if (refused) throw Error(*refused);
  return nullptr;
}

std::string HostDirectory::read() const {
  return store_->check({key_}) ? store_->get(key_) : std::string();
}

void HostDirectory::add_self(const TableMemory& memory) const {
  for (std::string before = read();;) {
    Place place = parse(before);
    if (place.number != memory.header().number) return;  // the table has moved on
    // Other Rows of this process have other descriptors of the memory; their entries stay.
    const Holder own = self(memory);
    std::erase_if(place.holders, [&](const Holder& holder) {
      return !is_alive(holder.pid, holder.start_ticks) ||
             (holder.pid == own.pid && holder.descriptor == own.descriptor);
    });
    place.holders.push_back(own);
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
