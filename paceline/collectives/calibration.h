#pragma once

// Measures a machine's costs with the group at hand, and keeps them in a file: `paceline bench
// --calibrate` does so, and later groups choose by it. The file is JSON with the host's name and
// the date; rank 0's counts for all.

#include <filesystem>
#include <optional>

#include "paceline/collectives/cost_model.h"

namespace paceline {

class ProcessGroup;

// Collective; takes about a second. What the group cannot show stays as `known` on rank 0: a group
// on one host says nothing of the network, one on several hosts nothing of sockets inside one,
// unless two of its ranks share a host. Every rank gets rank 0's numbers.
CostModel measure_costs(ProcessGroup& group, const CostModel& known = {});

// $PACELINE_CALIBRATION, otherwise $XDG_CACHE_HOME or ~/.cache, then paceline/costs.json; empty
// when there is no home, or the variable is "off".
std::filesystem::path calibration_path();
// Error(kSystem) with the path.
void save_calibration(const CostModel& costs, const std::filesystem::path& path);
// Empty when there is no such file. Error(kCorrupt) naming the path and what is wrong for one that
// save_calibration() did not write.
std::optional<CostModel> load_calibration(const std::filesystem::path& path);

}  // namespace paceline
