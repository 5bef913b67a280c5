#pragma once

// The variables by which a user's environment changes what a measurement of Paceline shows. Most of
// them mean what they mean for any program, and are named with the results. Those that would put
// something else than the engine under Paceline's name, or make it write files meanwhile, are taken
// from the ranks.
//
// Thread safety: pure functions.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/launcher/process/environment.h"

namespace paceline::bench {

// Another library, a trace of every call.
inline constexpr std::array<std::string_view, 2> kRemovedVariables = {"PACELINE_BACKEND",
                                                                      "PACELINE_TIMELINE_DIR"};
inline constexpr std::array<std::string_view, 7> kHeldVariables = {
    "PACELINE_TRANSPORT",   "PACELINE_ENCRYPT",       "PACELINE_TCP_STREAMS", "PACELINE_BY_PACKAGE",
    "PACELINE_CALIBRATION", "PACELINE_SOCKET_IFNAME", "PACELINE_FLIGHT_DIR"};

struct OwnVariables {
  std::vector<std::string> held, removed;  // "PACELINE_ENCRYPT=1"
};

// `set` is what an option sets in place of the inherited.
OwnVariables own_variables(const launcher::Environment& inherited,
                           const launcher::Environment& set);
// "with PACELINE_ENCRYPT=1; without PACELINE_BACKEND=gloo"; empty when there are none.
std::string describe(const OwnVariables& variables);

}  // namespace paceline::bench
