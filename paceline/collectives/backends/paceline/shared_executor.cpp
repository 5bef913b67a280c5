#include "paceline/collectives/backends/paceline/shared_executor.h"

#include <algorithm>
#include <utility>

namespace paceline {
namespace {

bool is_shared(const Announcement& said) {
  return said.input.region != -1 && said.output.region != -1;
}

}  // namespace

SharedExecutor::SharedExecutor(Mesh& mesh, GroupShare& share,
                               std::shared_ptr<SymmetricRegistry> registry,
                               std::optional<PackagePlan> packages)
    : packages_(std::move(packages)),
      terms_{mesh.world_size(), mesh.oversubscribed(), packages_ ? &*packages_ : nullptr},
      share_(share),
      regions_(mesh, std::move(registry)),
      zero_copy_(mesh, share_, regions_, schedules_),
      staged_(mesh, share_, schedules_) {
  if (packages_ && packages_->is_possible()) {
    by_package_.emplace(mesh, share_, regions_, schedules_, packages_->packages());
  }
}

void SharedExecutor::run(const Collective& call, const Fingerprint& fingerprint,
                         const WaitOptions& wait) {
  const SharedRoute route = choose_route(terms_, {call.op, call.dtype, call.count});
  const auto blocks = gives_blocks(call.op) ? static_cast<std::size_t>(terms_.world_size) : 1;
  const SharedOperation operation{call,   fingerprint,      wait, size_of(call.dtype),
                                  blocks, route.is_one_shot};
  if (call.op == Op::kVisit) return enter_visit(operation);
  switch (route.way) {
    case SharedRoute::Way::kCounted:
      return run_counted(operation);
    case SharedRoute::Way::kTiny:
      return run_tiny(operation);
    case SharedRoute::Way::kSmall:
      return run_small(operation);
    case SharedRoute::Way::kLarge:
      return run_large(operation, route.is_by_package);
  }
}

// The group runs the body, and has all ranks meet again.
void SharedExecutor::enter_visit(const SharedOperation& operation) {
  share_.enter_with_places(operation, regions_.announcement_for(operation));
  visited_.clear();
  if (!regions_.hold_all(operation, share_.announced())) return;
  for (int rank = 0; rank < terms_.world_size; ++rank) {
    visited_.push_back(regions_.at(rank, share_.announced(rank).output));
  }
}

// Nobody looks where the buffers lie.
void SharedExecutor::run_tiny(const SharedOperation& operation) {
  const std::size_t count = operation.call.count;
  const Schedule& schedule = staged_.schedule_for(operation, count);
  share_.begin_piece();
  staged_.copy_in(operation, schedule, 0, count);
  share_.enter(operation, {operation.fingerprint, {}, {}});
  staged_.run_piece(operation, schedule, 0, count);
}

// A rank whose buffers are not shared copies before it knows of the others, which then is one phase
// less for all.
void SharedExecutor::run_small(const SharedOperation& operation) {
  const std::size_t count = operation.call.count;
  const Announcement announcement = regions_.announcement_for(operation);
  const Schedule& schedule = staged_.schedule_for(operation, count);
  share_.begin_piece();
  if (!is_shared(announcement)) staged_.copy_in(operation, schedule, 0, count);
  share_.enter_with_places(operation, announcement);
  const auto announced = share_.announced();
  if (regions_.hold_all(operation, announced)) {
    zero_copy_.run(operation);
    return;
  }
  if (std::any_of(announced.begin(), announced.end(), is_shared)) {
    if (is_shared(announcement)) staged_.copy_in(operation, schedule, 0, count);
    share_.meet(operation);
  }
  staged_.run_piece(operation, schedule, 0, count);
}

void SharedExecutor::run_counted(const SharedOperation& operation) {
  share_.enter_with_places(operation, regions_.announcement_for(operation));
  if (regions_.hold_all(operation, share_.announced())) {
    zero_copy_.run(operation);
  } else {
    staged_.run_blocks(operation);
  }
}

void SharedExecutor::run_large(const SharedOperation& operation, bool is_by_package) {
  share_.enter_with_places(operation, regions_.announcement_for(operation));
  const bool is_in_place = regions_.hold_all(operation, share_.announced());
  if (is_by_package) {
    is_in_place ? by_package_->run_in_place(operation) : by_package_->run_staged(operation);
  } else if (is_in_place) {
    zero_copy_.run(operation);
  } else {
    staged_.run(operation);
  }
}

}  // namespace paceline
