#include "paceline/engine/collectives/backends/paceline/shared_route.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/collectives/backends/paceline/group_share.h"
#include "paceline/engine/collectives/backends/paceline/shared_operation.h"
#include "paceline/engine/collectives/planning/plan_text.h"
#include "paceline/engine/core/counted.h"

namespace paceline {
namespace {

// Up to here one phase and a copy are cheaper than the two phases of zero-copy.
constexpr std::size_t kTinyBytes = 4 << 10;
constexpr std::size_t kTinyBytesWhenSharingCores = 32 << 10;
// Up to here what peers read is copied before the ranks meet, which saves a phase.
constexpr std::size_t kSmallBytes = 16 << 10;
// Up to here, and staged, every rank reduces everything itself, which saves a phase. Two ranks read
// no more of each other's memory that way, whatever the size.
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
  // Blocks with counts are cut by the longest of them, which `count` does not tell.
  const bool is_one_piece =
      !has_counts(request.op) &&
      request.count <= staged_piece_count(request.op, request.dtype, terms.world_size);
  if (is_one_piece && bytes <= most_tiny(terms)) {
    route.way = SharedRoute::Way::kTiny;
  } else if (is_one_piece && bytes <= kSmallBytes) {
    route.way = SharedRoute::Way::kSmall;
  } else {
    route.way = SharedRoute::Way::kLarge;
    route.is_by_package = terms.packages != nullptr && terms.packages->chooses(request.op);
  }
  return route;
}

std::string explain_route(const SharedTerms& terms, const PlanRequest& request) {
  const SharedRoute route = choose_route(terms, request);
  const char* const staged =
      route.is_by_package ? "by_package" : (route.is_one_shot ? "one_shot" : "direct");
  const char* const in_place = route.is_by_package ? "by_package" : "direct";
  std::string how;
  if (route.way == SharedRoute::Way::kTiny) {
    how =
        fmt::format("{}; by way of the staging area, up to {} KiB", staged, most_tiny(terms) >> 10);
  } else {
    how = fmt::format(
        "{}; read and written in place when all buffers lie in symmetric memory, otherwise {}by "
        "way "
        "of a staging area of {} KiB",
        in_place, staged == std::string_view(in_place) ? "" : fmt::format("{} ", staged),
        GroupShare::kAreaBytes >> 10);
  }
  const bool asks_plan = terms.packages != nullptr && route.way == SharedRoute::Way::kLarge;
  return fmt::format("{} among {} in shared memory: {}\n{}", describe(request),
                     counted(terms.world_size, "rank"), how,
                     asks_plan ? terms.packages->explain(request) : "");
}

}  // namespace paceline
