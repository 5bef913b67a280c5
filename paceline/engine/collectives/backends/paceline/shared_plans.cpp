#include "paceline/engine/collectives/backends/paceline/shared_plans.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "paceline/engine/collectives/algorithms/in_shared_memory.h"
#include "paceline/engine/collectives/backends/paceline/group_share.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/selection/planner.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline {

namespace {

// Up to this size, one phase and a copy are cheaper than the two phases of a call in place.
constexpr std::size_t kTinyBytes = 4 << 10;
constexpr std::size_t kTinyBytesWhenSharingCores = 32 << 10;
// Up to this size, the data that peers read is copied before the ranks meet, which saves a phase.
constexpr std::size_t kSmallBytes = 16 << 10;
// Up to this size, in staged calls, every rank reduces everything itself, which saves a phase. With
// two ranks this applies to every size, because it does not make them read more of each other's
// memory.
constexpr std::size_t kOneShotBytes = 8 << 10;

std::size_t most_tiny(const SharedTerms& terms) {
  return terms.shares_cores ? kTinyBytesWhenSharingCores : kTinyBytes;
}

}  // namespace

std::size_t staged_piece_count(Op op, Dtype dtype, int world_size) {
  const auto blocks = gives_blocks(op) ? static_cast<std::size_t>(world_size) : 1;
  return std::max<std::size_t>(1, GroupShare::kAreaBytes / size_of(dtype) / blocks);
}

SharedRoute choose_route(const SharedTerms& terms, const PlanRequest& request) {
  const std::size_t bytes = request.count * size_of(request.dtype);
  SharedRoute route;
  route.is_one_shot = request.op == Op::kAllReduce &&
                      (terms.world_size == 2 || bytes <= std::max(kOneShotBytes, most_tiny(terms)));
  // Calls with unequal counts are divided by their longest block, which `count` does not show.
  const bool is_one_piece =
      !has_counts(request.op) &&
      request.count <= staged_piece_count(request.op, request.dtype, terms.world_size);
  if (is_one_piece && bytes <= most_tiny(terms)) {
    route.way = SharedRoute::Way::kTiny;
  } else if (is_one_piece && bytes <= kSmallBytes) {
    route.way = SharedRoute::Way::kSmall;
  } else {
    route.way = SharedRoute::Way::kLarge;
  }
  return route;
}

std::string explain_route(const SharedTerms& terms, const PlanRequest& request) {
  const SharedRoute route = choose_route(terms, request);
  const char* const staged = route.is_one_shot ? "one_shot" : "direct";
  std::string how;
  if (route.way == SharedRoute::Way::kTiny) {
    how =
        fmt::format("{}; by way of the staging area, up to {} KiB", staged, most_tiny(terms) >> 10);
  } else {
    how = fmt::format(
        "direct; read and written in place when all buffers lie in symmetric memory, otherwise "
        "{}by way of a staging area of {} KiB",
        route.is_one_shot ? "one_shot " : "", GroupShare::kAreaBytes >> 10);
  }
  return fmt::format("{} among {} in shared memory: {}\n", describe(request),
                     counted(terms.world_size, "rank"), how);
}

SharedPlan SharedPlans::make(const Collective& call) const {
  SharedPlan plan;
  plan.route = choose_route(terms_, {call.op, call.dtype, call.count});
  if (plan.route.way != SharedRoute::Way::kLarge) {
    const auto build = plan.route.is_one_shot ? build_staged_one_shot : build_staged;
    plan.staged =
        build({call.op, rank_, terms_.world_size, call.root, call.count, call.count, call.count});
  }
  return plan;
}

bool ScheduleKey::operator==(const ScheduleKey& other) const {
  const ScheduleSpec& theirs = other.spec;
  return build == other.build && spec.op == theirs.op && spec.root == theirs.root &&
         spec.count == theirs.count && spec.input_stride == theirs.input_stride &&
         spec.output_stride == theirs.output_stride && spec.chunk == theirs.chunk;
}

// The products are independent of each other, so that the processor computes them at the same time:
// this lookup is a part of the time of a small call.
std::size_t ScheduleKey::place() const {
  const auto root_and_op =
      (static_cast<std::uint64_t>(spec.root) << 8) | static_cast<std::uint64_t>(spec.op);
  const std::uint64_t sum = spec.count * 0x9e3779b97f4a7c15u +
                            spec.input_stride * 0xc2b2ae3d27d4eb4fu +
                            root_and_op * 0x165667b19e3779f9u +
                            reinterpret_cast<std::uintptr_t>(build) * 0x27d4eb2f165667c5u;
  return (sum ^ (sum >> 29)) * 0x9e3779b97f4a7c15u >> 56;
}

}  // namespace paceline
