#include "paceline/engine/collectives/planning/plan_text.h"

#include <cmath>

#include "paceline/engine/core/counted.h"

namespace paceline {
namespace {

// Whether `count` is one block of the larger buffer (collective.h).
bool counts_blocks(Op op) {
  return traits_of(op).input == Extent::kBlocks || traits_of(op).output == Extent::kBlocks;
}

}  // namespace

std::string describe(const PlanRequest& request) {
  return fmt::format("{} of {} x {} ({}{})", name_of(request.op), request.count,
                     name_of(request.dtype), size_text(request.count * size_of(request.dtype)),
                     counts_blocks(request.op) ? " a block" : "");
}

std::string describe(const Effort& work) {
  std::string text = fmt::format("{:.0f} latenc{}, {}", work.rounds, work.rounds == 1 ? "y" : "ies",
                                 counted(std::llround(work.messages), "message"));
  const auto add = [&](double bytes, const char* what) {
    if (bytes > 0) text += fmt::format(", {} {}", size_text(static_cast<std::size_t>(bytes)), what);
  };
  add(work.network_bytes, "through a host's network");
  add(work.socket_bytes, "through sockets");
  add(work.reduce_bytes, "read by reduces");
  add(work.copy_bytes, "copied");
  if (work.meetings > 0) text += ", " + counted(std::llround(work.meetings), "meeting");
  return text;
}

}  // namespace paceline
