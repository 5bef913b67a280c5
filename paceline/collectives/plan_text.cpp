#include "paceline/collectives/plan_text.h"

#include "paceline/core/counted.h"

namespace paceline {
namespace {

// Whether `count` is one block of the larger buffer (collective.h).
bool counts_blocks(Op op) {
  return op == Op::kAllGather || op == Op::kGather || op == Op::kScatter ||
         op == Op::kReduceScatter || op == Op::kAllToAll;
}

}  // namespace

std::string describe(const PlanRequest& request) {
  return fmt::format("{} of {} x {} ({}{})", name_of(request.op), request.count,
                     name_of(request.dtype), size_text(request.count * size_of(request.dtype)),
                     counts_blocks(request.op) ? " a block" : "");
}

}  // namespace paceline
