#include "paceline/engine/tables/host/table_memory.h"

#include <algorithm>
#include <bit>
#include <random>

#include <sys/stat.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"

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
  memory->allocate(0, layout.entries);  // they are zero
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
  if (!bring_pages(mapping_.data() + begin, end - begin)) no_memory(end - begin);
}

}  // namespace paceline::tables
