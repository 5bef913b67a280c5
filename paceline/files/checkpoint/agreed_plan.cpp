#include "paceline/files/checkpoint/agreed_plan.h"

#include <algorithm>
#include <span>
#include <string>

#include "paceline/engine/collectives/group/objects.h"

namespace paceline {

void copy_box(std::byte* to, const BoxPlan& plan, const BoxToWrite& one, const HeldMemory& from) {
  const std::size_t element = size_of(plan.tensors[one.tensor].dtype);
  copy_elements({to, row_major_strides(one.box.sizes)},
                place_of_part(from.place, from.held.box, one.box, element), one.box.sizes, element);
}

bool AgreedPlan::update(ProcessGroup& group, const std::vector<HeldMemory>& held,
                        const std::vector<bool>& writes) {
  const bool is_same = plan_ && std::ranges::equal(held, held_, {}, &HeldMemory::held);
  std::int32_t changed = is_same ? 0 : 1;
  group.all_reduce(std::span(&changed, 1), ReduceOp::kMax);
  if (changed == 0) return false;
  plan_.reset();
  held_.clear();
  for (const HeldMemory& one : held) held_.push_back(one.held);
  std::vector<std::vector<HeldBox>> all;
  for (const std::string& text : all_gather_object(group, encode(held_)))
    all.push_back(decode_held(text));
  plan_ = plan_boxes(all, writes);
  return true;
}

}  // namespace paceline
