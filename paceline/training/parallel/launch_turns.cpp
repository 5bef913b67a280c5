#include "paceline/training/parallel/launch_turns.h"

#include <map>
#include <mutex>

namespace paceline {

std::shared_ptr<LaunchTurns> LaunchTurns::of(const ProcessGroup& group) {
  static std::mutex mutex;
  // Never destroyed, because a module in a global variable may end later.
  static auto& all = *new std::map<const ProcessGroup*, std::weak_ptr<LaunchTurns>>;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto turns = all[&group].lock();
  if (!turns) all[&group] = turns = std::make_shared<LaunchTurns>();
  return turns;
}

void LaunchTurns::enter(const void* who, std::function<void()> go_on) {
  forget(who);
  queue_.emplace_back(who, std::move(go_on));
  reached_.push_back(who);
}

void LaunchTurns::pass_on(const void* who) {
  const bool was_up = is_up(who);
  std::erase_if(queue_, [who](const auto& entry) { return entry.first == who; });
  if (!was_up || queue_.empty()) return;
  const auto go_on = queue_.front().second;  // it may leave, too
  go_on();
}

void LaunchTurns::end(const void* who, std::function<void()> then) {
  std::erase(reached_, who);
  ended_.emplace_back(who, std::move(then));
  if (!reached_.empty()) return;
  for (const auto& [module, do_now] : std::exchange(ended_, {})) {
    if (do_now) do_now();
  }
}

void LaunchTurns::forget(const void* who) {
  const auto is_its = [who](const auto& entry) { return entry.first == who; };
  std::erase_if(queue_, is_its);
  std::erase(reached_, who);
  std::erase_if(ended_, is_its);
}

}  // namespace paceline
