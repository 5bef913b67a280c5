#pragma once

// Exit codes that tell whoever started a program what to do next. docs/launching.md has the table
// of all endings, and of what `paceline run` does then.

#include <exception>

namespace paceline {

// "Stopped as agreed, everything is saved, start me again": of a rank that ends because of
// AgreedStop. `paceline run` passes it on when all ranks end so; it is not a failure.
inline constexpr int kStoppedAsAgreed = 85;

// Of a rank that a DamagedState (error.h) ended. `paceline run --on-damage` says what then happens.
inline constexpr int kStateDamaged = 86;

// The call must be changed: of the command `paceline`, and of a rank that an Error of use ended.
inline constexpr int kExitUsage = 2;
// Something around the call must be changed: of the command `paceline` alone.
inline constexpr int kExitEnvironment = 3;

// As shells say it: a program was found but cannot be executed, or was not found.
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

// The exit code of a program that this exception ends, whoever catches it last: kStateDamaged for a
// DamagedState, kExitUsage for an Error that is kInvalid or kUnsupported, and 1 for any other.
int exit_code_of(const std::exception& error);

}  // namespace paceline
