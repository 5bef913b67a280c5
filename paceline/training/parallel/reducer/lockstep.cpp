#include "paceline/training/parallel/reducer/lockstep.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"

namespace paceline {

std::shared_ptr<LaunchTurns> LaunchTurns::of(const ProcessGroup& group) {
  static std::mutex mutex;  // guards `all`
  // Never destroyed, because a module in a global variable may be destroyed later.
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
  const bool had_turn = has_turn(who);
  std::erase_if(queue_, [who](const auto& entry) { return entry.first == who; });
  if (!had_turn || queue_.empty()) return;
  const auto go_on = queue_.front().second;  // a copy, because the call may remove its entry
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
  const auto belongs_to_who = [who](const auto& entry) { return entry.first == who; };
  std::erase_if(queue_, belongs_to_who);
  std::erase(reached_, who);
  std::erase_if(ended_, belongs_to_who);
}

Error with_advice(const Error& error) {
  constexpr const char* kMismatch =
      "collectives do not match";  // in messages of engine/collectives/collective.cpp
  constexpr const char* kRecords = "; flight records: ";  // from engine/collectives/flight/
  constexpr const char* kAdvice =
      "; backward() averages gradients and broadcasts rank 0's buffers, so every rank must make "
      "the same forward() and backward() calls, across all modules in the same order; to run the "
      "model on one rank alone, call model.module().forward(x); where ranks have different numbers "
      "of batches, train inside paceline::join(), or take batches from a data::DataLoader";
  constexpr const char* kLeft = "has left the group";  // in messages of engine/transport/mesh.cpp
  constexpr const char* kFewerInputs =
      "; where ranks have different numbers of batches, train inside paceline::join(), or take "
      "batches from a data::DataLoader, which gives every rank the same number";
  std::string text = error.what();
  const bool differs =
      text.find(kMismatch) != std::string::npos || error.code() == ErrorCode::kTimeout;
  const char* const advice = differs                                 ? kAdvice
                             : text.find(kLeft) != std::string::npos ? kFewerInputs
                                                                     : nullptr;
  if (advice == nullptr) return error;
  text.insert(std::min(text.find(kRecords), text.size()), advice);
  return error.reworded(text);
}

namespace {

constexpr std::array kNames = {"has no more inputs", "is in a forward pass that averages",
                               "is in a forward pass under no_sync()", "takes a step"};

}  // namespace

UnevenInputs::Others UnevenInputs::announce(Doing own) {
  const std::vector<std::int8_t> mine = {static_cast<std::int8_t>(own)};
  std::vector<std::int8_t> all(static_cast<std::size_t>(group_->world_size()));
  group_->all_gather(std::span(all), std::span(mine));
  require_same(all);
  Others others;
  for (std::size_t rank = all.size(); rank-- > 0;) {
    const auto doing = static_cast<Doing>(all[rank]);
    if (doing == Doing::kNothingMore) continue;
    others.doing = doing;
    ++others.num_active;
    first_active_ = static_cast<int>(rank);
  }
  others.first_active = first_active_;
  others.divisor =
      rules_.divide_by_initial_world_size ? group_->world_size() : std::max(others.num_active, 1);
  others.begins_step = begins_step_;
  if (others.doing == Doing::kAveragingPass) begins_step_ = false;
  if (others.doing == Doing::kStep) begins_step_ = true;
  return others;
}

void UnevenInputs::require_same(const std::vector<std::int8_t>& all) const {
  constexpr auto kEnded = static_cast<std::int8_t>(Doing::kNothingMore);
  std::vector<std::size_t> ended;
  std::size_t first = all.size();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == kEnded) {
      ended.push_back(rank);
      continue;
    }
    if (first == all.size()) first = rank;
    check(all[rank] == all[first],
          "{}: join: rank {} {}, but rank {} {}: ranks may have different numbers of inputs, "
          "but must do the same with each",
          group_->self(), first, kNames[static_cast<std::size_t>(all[first])], rank,
          kNames[static_cast<std::size_t>(all[rank])]);
  }
  check(!rules_.throw_on_early_termination || ended.empty() || first == all.size(),
        "{}: join: the inputs of rank {} have ended, and other ranks have more "
        "(throw_on_early_termination)",
        group_->self(), fmt::join(ended, " and "));
}

}  // namespace paceline
