#include "paceline/collectives/backends/paceline/shared_schedules.h"

namespace paceline {
namespace {

constexpr std::size_t kMostEntries = 256;

std::uint64_t key_of(const ScheduleSpec& spec, SharedSchedules::Build build) {
  std::uint64_t key = spec.count * 0x9e3779b97f4a7c15u;
  for (const std::uint64_t part :
       {std::uint64_t(spec.input_stride), std::uint64_t(spec.output_stride),
        std::uint64_t(spec.chunk), std::uint64_t(spec.root), std::uint64_t(spec.op),
        std::uint64_t(reinterpret_cast<std::uintptr_t>(build))}) {
    key = (key ^ part) * 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
  }
  return key;
}

bool same(const ScheduleSpec& a, const ScheduleSpec& b) {
  return a.op == b.op && a.root == b.root && a.count == b.count &&
         a.input_stride == b.input_stride && a.output_stride == b.output_stride &&
         a.chunk == b.chunk;
}

}  // namespace

const Schedule& SharedSchedules::find(const ScheduleSpec& spec, Build build) {
  const auto key = key_of(spec, build);
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second.build == build && same(found->second.spec, spec)) {
    return found->second.schedule;
  }
  if (entries_.size() >= kMostEntries) entries_.clear();
  return (entries_[key] = {spec, build, build(spec)}).schedule;
}

}  // namespace paceline
