#pragma once

// Exit codes that tell whoever started a program what to do next.

namespace paceline {

// "Stopped as agreed, everything is saved, start me again": of a rank that ends because of
// AgreedStop. `paceline run` passes it on when all ranks end so; it is not a failure.
inline constexpr int kStoppedAsAgreed = 85;

// Of a rank that a DamagedState (error.h) ended. `paceline run --on-damage` says what then happens.
inline constexpr int kStateDamaged = 86;

// Of the command `paceline`, where it is not the failing rank's: the call must be changed, or
// something around it.
inline constexpr int kExitUsage = 2;
inline constexpr int kExitEnvironment = 3;

// As shells say it: a program was found but cannot be executed, or was not found.
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

}  // namespace paceline
