#include "paceline/training/parallel/uneven_inputs.h"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

constexpr std::array kNames = {"has no more inputs", "is in a forward pass that averages",
                               "is in a forward pass under no_sync()", "takes a step"};

}  // namespace

UnevenInputs::Others UnevenInputs::announce(Doing own) {
  const std::vector<std::int8_t> mine = {static_cast<std::int8_t>(own)};
  std::vector<std::int8_t> all(static_cast<std::size_t>(group_->world_size()));
  group_->all_gather(std::span(mine), std::span(all));
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
      options_.divide_by_initial_world_size ? group_->world_size() : std::max(others.num_active, 1);
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
  check(!options_.throw_on_early_termination || ended.empty() || first == all.size(),
        "{}: join: the inputs of rank {} have ended, and other ranks have more "
        "(throw_on_early_termination)",
        group_->self(), fmt::join(ended, " and "));
}

}  // namespace paceline
