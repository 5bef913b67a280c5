#pragma once

namespace paceline {

inline constexpr char kStagedNccl[] = "staged_nccl";

// Registers backend "staged_nccl" in this process: nccl for buffers in ordinary memory. It copies
// them to the GPU before each call and back afterwards, so the conformance suite, which uses
// ordinary memory, can test NCCL. As with all backends for ordinary memory, the engine itself
// carries out the calls of groups of one rank.
void register_staged_nccl();

}  // namespace paceline
