#pragma once

// Exit codes that tell whoever started a program what to do next.

namespace paceline {

// "Stopped as agreed, everything is saved, start me again": of a rank that ends because of
// AgreedStop. `paceline run` passes it on when all ranks end so; it is no failure.
inline constexpr int kStoppedAsAgreed = 85;

}  // namespace paceline
