#include "paceline/training/parallel/kept_tensors.h"

#include <algorithm>

#include <fmt/format.h>
#include <xxhash.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/error.h"

namespace paceline {
namespace {

std::uint64_t hash_of_bytes(const at::Tensor& tensor) {
  return XXH3_64bits(tensor.data_ptr(), tensor.nbytes());
}

}  // namespace

void KeptTensors::note(const Named& tensors) {
  kept_.clear();
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense() || tensor.numel() == 0) continue;
    kept_.push_back({name, tensor, WriteMark(tensor), hash_of_bytes(tensor)});
  }
}

void KeptTensors::verify(const char* what, const ProcessGroup& group, std::int64_t step) const {
  const bool is_unwritten =
      std::ranges::all_of(kept_, [](const Kept& kept) { return kept.mark.holds_for(kept.tensor); });
  if (!is_unwritten) return;
  for (const Kept& kept : kept_) {
    if (hash_of_bytes(kept.tensor) == kept.hash) continue;
    throw DamagedState(fmt::format(
        "{}: {} {} changed in memory after step {}; memory is failing or was overwritten, or "
        "the program wrote through data() or data_ptr(): continue from a checkpoint",
        group.self(), what, kept.name, step));
  }
}

void KeptTensors::verify_before_pass(const char* what, ProcessGroup& group, std::int64_t step) const
    try {
  verify(what, group, step);
} catch (const DamagedState& error) {
  group.abort(error.what());
  throw;
}

}  // namespace paceline
