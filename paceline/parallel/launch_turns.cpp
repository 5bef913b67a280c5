#include "paceline/parallel/launch_turns.h"

#include <map>
#include <mutex>

namespace paceline {

std::shared_ptr<LaunchTurns> LaunchTurns::of(const ProcessGroup& group) {
  static std::mutex mutex;
  static std::map<const ProcessGroup*, std::weak_ptr<LaunchTurns>> all;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto turns = all[&group].lock();
  if (!turns) all[&group] = turns = std::make_shared<LaunchTurns>();
  return turns;
}

void LaunchTurns::enter(const void* who, std::function<void()> go_on) {
  queue_.emplace_back(who, std::move(go_on));
}

void LaunchTurns::leave(const void* who) {
  std::erase_if(queue_, [who](const auto& entry) { return entry.first == who; });
}

void LaunchTurns::pass_on(const void* who) {
  const bool was_up = is_up(who);
  leave(who);
  if (!was_up || queue_.empty()) return;
  const auto go_on = queue_.front().second;  // it may leave, too
  go_on();
}

}  // namespace paceline
