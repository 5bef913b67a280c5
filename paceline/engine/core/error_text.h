#pragma once

// How the library words its errors, and the exit codes of its commands.
//
// Thread safety: the functions may be called from any thread.

#include <exception>
#include <string>

#include "paceline/engine/core/error.h"

namespace paceline {

// Return an Error(kSystem) whose message is `what: describe_errno(error_number)`; without
// `error_number`, errno is used. Call them before anything else can change errno.
Error system_error(const std::string& what);
Error system_error(const std::string& what, int error_number);
// strerror(error_number) and, if this process has too many open descriptors, what to do.
std::string describe_errno(int error_number);

// The text of the exception that is being handled, of any type: a program's own functions may throw
// other types than std::exception. Requires: an exception is being handled.
std::string describe_current_exception();

// Returns `error` with `who` ("rank 1", from rank_name()) and `doing` (the failed activity) before
// its text. An error whose text already begins with a rank is returned unchanged.
Error reported_by(const std::string& who, const std::string& doing, const Error& error);

// Shortens the list at the end of a message, for example of the tensors in which two models differ:
// a launcher that repeats a rank's last lines of output must still show the line above the list.
//
// `lines`: a line end precedes each line. Returns the first 8 lines and the number of the others.
std::string first_lines(std::string lines);

// Exit code: the caller must change the call. Used by the command `paceline`, and by a rank that
// ends because of an invalid or unsupported call.
inline constexpr int kExitUsage = 2;
// Exit code: the caller must change something outside the call. Used only by the command
// `paceline`.
inline constexpr int kExitEnvironment = 3;

// Exit code: a DamagedState ended the rank. `paceline run --on-damage` selects the reaction to it.
inline constexpr int kStateDamaged = 86;

// The exit code of a program that ends with this exception: kStateDamaged for a DamagedState,
// kExitUsage for an Error that is kInvalid or kUnsupported, and 1 for any other.
int exit_code_of(const std::exception& error);

// The exit codes that shells use: a program was found but cannot be executed, or was not found.
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

// How messages name a rank: its rank in the group concerned and, if different, its rank in the
// world, which logs and flight records use.
//
// "rank 1"; "rank 1 (rank 3 of the world)".
std::string rank_name(int rank, int in_world);
// "rank 1 (box)"; "rank 1 (rank 3 of the world, box)".
std::string rank_name(int rank, int in_world, const std::string& host);

}  // namespace paceline
