#pragma once

// One rank's record as a line of a table.

#include <string>

#include "paceline/engine/telemetry/flight_file.h"

namespace paceline {

// "rank 3 (box, pid 711, stopped): last finished broadcast #41 of group world".
std::string describe_rank(const Flight& flight);

}  // namespace paceline
