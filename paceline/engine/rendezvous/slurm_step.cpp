#include "paceline/engine/rendezvous/slurm_step.h"

#include <charconv>
#include <cstdint>

namespace paceline {

bool in_step_of_srun(const GetVariable& variable) {
  constexpr std::uint64_t kFirstOfSlurmsOwn = 0xfffffff0;  // slurm.h: SLURM_INTERACTIVE_STEP, ...
  const auto text = variable("SLURM_STEP_ID");
  if (!text) return false;
  std::uint64_t number = 0;
  const auto [stop, status] = std::from_chars(text->data(), text->data() + text->size(), number);
  return status != std::errc() || number < kFirstOfSlurmsOwn;
}

}  // namespace paceline
