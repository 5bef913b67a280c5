#pragma once

namespace paceline {

inline constexpr char kStagedNccl[] = "staged_nccl";

// Makes backend "staged_nccl" for this process: backend nccl for buffers in ordinary memory, which
// are copied to the GPU before each call and back after it. With it the conformance suite, which
// works on ordinary memory, says what NCCL does. Groups of one are the engine's, as with all
// backends for ordinary memory.
void register_staged_nccl();

}  // namespace paceline
