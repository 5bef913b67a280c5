#include "paceline/engine/tables/slot_map.h"

#include <set>
#include <sstream>

#include "paceline/engine/core/check.h"
#include "paceline/engine/tables/row_update.h"
#include "paceline/engine/tables/table_layout.h"

namespace paceline::tables {

namespace {

constexpr const char* kKey = "tables/slots";

// "EPOCH\nserver0\nserver1": names have no control characters.
std::string text_of(const SlotMap& map) {
  return fmt::format("{}\n{}", map.epoch, fmt::join(map.servers, "\n"));
}

SlotMap parse(const std::string& text) {
  std::istringstream lines(text);
  SlotMap map;
  std::string line;
  std::getline(lines, line);
  map.epoch = std::strtoull(line.c_str(), nullptr, 10);
  while (std::getline(lines, line)) map.servers.push_back(line);
  return map;
}

}  // namespace

std::size_t SlotMap::owner(Id id) const { return slot_of(id) * servers.size() / kNumSlots; }

SlotMap SlotMap::agree(Store& store, const std::vector<std::string>& servers) {
  const std::set<std::string> names(servers.begin(), servers.end());
  check(!servers.empty() && servers.size() <= kNumSlots && names.size() == servers.size(),
        "open_rows: a table needs 1 to {} servers with different names, not {}", kNumSlots,
        fmt::join(servers, ", "));
  for (std::string before = store.check({kKey}) ? store.get(kKey) : std::string();;) {
    SlotMap map = parse(before);
    if (map.servers == servers) return map;
    map = {.epoch = map.epoch + 1, .servers = servers};
    const std::string found = store.compare_set(kKey, before, text_of(map));
    if (found == text_of(map)) return map;
    before = found;
  }
}

}  // namespace paceline::tables
