#pragma once

// The group as an argument of a function: GroupRef accepts a ProcessGroup, and a shared pointer to
// one, such as the result of init_process_group(). A function that keeps the group beyond the call
// takes the shared pointer itself, so a program passes `group` to every function.
//
// Thread safety: a value; that of ProcessGroup.

#include <memory>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/error.h"

namespace paceline {

class GroupRef {
 public:
  GroupRef(ProcessGroup& group) : group_(&group) {}
  // Error(kInvalid) for a null pointer.
  GroupRef(const std::shared_ptr<ProcessGroup>& group) : group_(group.get()) {
    if (group_ == nullptr) throw Error(ErrorCode::kInvalid, "a null pointer was given as a group");
  }

  ProcessGroup& operator*() const { return *group_; }
  ProcessGroup* operator->() const { return group_; }
  operator ProcessGroup&() const { return *group_; }

 private:
  ProcessGroup* group_;  // lives at least as long as the call
};

// all_reduce_value() (operations.h) of a group.
template <class T>
T all_reduce_value(const std::shared_ptr<ProcessGroup>& group, T value,
                   ReduceOp op = ReduceOp::kSum) {
  return all_reduce_value(*GroupRef(group), value, op);
}

}  // namespace paceline
