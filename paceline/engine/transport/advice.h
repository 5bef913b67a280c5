#pragma once

// How the text of an error ends whose cause is another rank: what to do. Each is a sentence without
// beginning, to stand behind a semicolon.

namespace paceline {

inline constexpr const char* kAdviceForLate =
    "see the output of the late rank; if it is only slow, raise the timeout "
    "(GroupOptions::timeout, "
    "CallOptions::timeout)";

}  // namespace paceline
