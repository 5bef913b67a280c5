#pragma once

// What the flight records of a job's ranks mean, in one sentence: which rank is missing, which
// died, which made another call. A pure function of decoded records; read_flights() gets them.
//
// How. Per group, each rank has a *position*: the last collective that it finished and the first
// that it did not. The lowest sequence number that some rank did not finish is where the group
// *stands*. Ranks that describe that number differently do not match; ranks without it never
// entered; if one of these stands in another group, the reason is looked for there, and two groups
// that wait for each other are reported as crossed.
//
// A group that has failed refuses every call, so what a rank called afterwards it did not enter;
// and a failure after which the rank went on counts only when the job is over and nothing else
// explains its end.
//
// What cannot be known is not guessed: a rank without a file, or on another machine, is called
// that.

#include <span>
#include <string_view>

#include "paceline/engine/collectives/flight/explanation.h"
#include "paceline/engine/telemetry/flight_file.h"

namespace paceline {

// Where several groups stand, the one named `group` is looked at first.
Explanation explain(std::span<const Flight> flights, std::string_view group = {});

}  // namespace paceline
