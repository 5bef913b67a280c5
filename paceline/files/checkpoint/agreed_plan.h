#pragma once

// The plan that the ranks of a group have made of what they hold (box_plan.h): made again only when
// some rank holds something else than before.
//
// Thread safety: none; when no one updates it, threads may read it.

#include <optional>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/files/checkpoint/box_plan.h"

namespace paceline {

// A box that this rank holds, and where.
struct HeldMemory {
  HeldBox held;
  BoxPlace place;
};

// Copies a box of the plan out of the held one in which it lies, as row-major elements.
void copy_box(std::byte* to, const BoxPlan& plan, const BoxToWrite& one, const HeldMemory& from);

class AgreedPlan {
 public:
  // Collective. True when the plan is another one than before. Errors of plan_boxes(), on every
  // rank.
  bool update(ProcessGroup& group, const std::vector<HeldMemory>& held,
              const std::vector<bool>& writes);

  // Requires: it was updated.
  const BoxPlan& operator*() const { return *plan_; }
  const BoxPlan* operator->() const { return &*plan_; }

 private:
  std::vector<HeldBox> held_;  // of the plan
  std::optional<BoxPlan> plan_;
};

}  // namespace paceline
