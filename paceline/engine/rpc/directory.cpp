#include "paceline/engine/rpc/directory.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/rpc/protocol/frame.h"

namespace paceline::rpc {
namespace {

// The list of changed names, one per line, and their number.
constexpr auto kChanges = "rpc/changes", kNumChanges = "rpc/num_changes";

std::string key_of(const std::string& name) { return "rpc/worker/" + name; }
std::string key_of_beats(const WorkerEntry& entry) { return "rpc/beats/" + entry.incarnation; }

std::string to_value(const WorkerEntry& entry) {
  const auto bytes = write_message(entry).copy();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
WorkerEntry from_value(const std::string& value) {
  std::vector<std::uint64_t> words(value.size() / 8 + 1);
  std::memcpy(words.data(), value.data(), value.size());
  return read_message<WorkerEntry>(std::as_bytes(std::span(words)).first(value.size()));
}

}  // namespace

bool is_gone(const WorkerEntry& entry) {
  if (entry.host != host_token() || entry.pid_namespace != pid_namespace()) return false;
  const auto status = process_status(entry.pid);
  return !status || status->start_ticks != entry.start_ticks || status->state == 'Z';
}

// The name is appended first and counted afterwards. If a worker dies between the two steps, other
// workers learn of its change only with the next change.
void Directory::publish_change(const std::string& name) {
  store_->append(kChanges, name + "\n");
  store_->add(kNumChanges, 1);
}

void Directory::enter(const WorkerEntry& self) {
  const std::string key = key_of(self.name);
  std::string before;
  for (;;) {
    const std::string there = store_->compare_set(key, before, to_value(self));
    if (there == to_value(self)) break;
    const WorkerEntry other = from_value(there);
    check(other.state != WorkerInfo::State::kPresent,
          "join: a worker named '{}' is present (role {}); every worker needs a name of its own",
          self.name, other.role);
    before = there;
  }
  publish_change(self.name);
}

void Directory::change(const WorkerEntry& entry, WorkerInfo::State state) {
  WorkerEntry changed = entry;
  changed.state = state;
  const std::string after = to_value(changed);
  WorkerEntry present = entry;
  present.state = WorkerInfo::State::kPresent;
  const std::string before = to_value(present);
  if (store_->compare_set(key_of(entry.name), before, after) != after) return;
  publish_change(entry.name);
  if (state == WorkerInfo::State::kLeft) store_->delete_key(key_of_beats(entry));
}

std::optional<WorkerEntry> Directory::find(const std::string& name) {
  if (!store_->check({key_of(name)})) return {};
  return from_value(store_->get(key_of(name)));
}

// The entries of the names in the list of changes from offset `begin` on. Moves `begin` to the end
// of the list.
std::vector<WorkerEntry> Directory::changed_since(std::size_t& begin) {
  const std::string changes = store_->get(kChanges);
  std::set<std::string> keys;
  for (std::size_t end = 0; (end = changes.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    keys.insert(key_of(changes.substr(begin, end - begin)));
  }
  if (keys.empty()) return {};
  std::vector<WorkerEntry> entries;
  for (const auto& value : store_->multi_get({keys.begin(), keys.end()})) {
    entries.push_back(from_value(value));
  }
  return entries;
}

std::vector<WorkerEntry> Directory::all() {
  std::size_t begin = 0;
  return store_->check({kChanges}) ? changed_since(begin) : std::vector<WorkerEntry>();
}

std::string Directory::unknown_worker_text(const std::string& name) {
  std::vector<std::string> present;
  for (const auto& entry : all()) {
    if (entry.state == WorkerInfo::State::kPresent) present.push_back(entry.name);
  }
  const std::string meant = nearest(name, present);
  return fmt::format("no worker is named '{}'{}", name,
                     meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant));
}

std::vector<WorkerEntry> Directory::look_around(const WorkerEntry& self, LeaseTime now) {
  const std::unique_lock lock(looking_, std::try_to_lock);
  if (!lock) return {};
  beat(self, now);
  const std::int64_t count = store_->add(kNumChanges, 0);
  std::vector<WorkerEntry> changed;
  if (count != num_seen_) changed = changed_since(num_read_);
  num_seen_ = count;
  for (const auto& entry : changed) {
    known_[entry.name] = entry;
    // If other workers declared this worker lost while its process was frozen, it enters again.
    if (entry.incarnation == self.incarnation && entry.state == WorkerInfo::State::kLost)
      enter(self);
  }
  check_next_worker(self, now);
  last_look_ = now;
  return changed;
}

void Directory::beat(const WorkerEntry& self, LeaseTime now) {
  if (now - last_beat_ < lease_ / 3) return;
  store_->add(key_of_beats(self), 1);
  last_beat_ = now;
}

void Directory::check_next_worker(const WorkerEntry& self, LeaseTime now) {
  // If this worker was declared lost, another process may have its name now.
  const auto is_other = [&](const WorkerEntry& entry) {
    return entry.state == WorkerInfo::State::kPresent && entry.incarnation != self.incarnation;
  };
  const WorkerEntry* next = nullptr;  // the next one in order of names, cyclically
  for (const auto& [name, entry] : known_) {
    if (!is_other(entry)) continue;
    if (next == nullptr || (next->name < self.name && name > self.name)) next = &entry;
  }
  if (next == nullptr) return;
  if (is_gone(*next)) return change(*next, WorkerInfo::State::kLost);
  const std::int64_t beats = store_->add(key_of_beats(*next), 0);
  // If this worker itself was frozen, it cannot tell how long the next worker was silent.
  const bool has_looked = now - last_look_ < lease_ / 2;
  if (!has_looked || next_.incarnation != next->incarnation || next_.beats != beats) {
    next_ = {next->incarnation, beats, now};
  } else if (now - next_.since >= lease_) {
    change(*next, WorkerInfo::State::kLost);
  }
}

}  // namespace paceline::rpc
