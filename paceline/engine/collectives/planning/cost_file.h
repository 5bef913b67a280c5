#pragma once

// The costs of a machine in the file that a calibration leaves (group/calibration.h) and later
// groups choose by: JSON with the host's name, the date and how far the repetitions of the
// measurement differed. Rank 0's file counts for all.

#include <filesystem>
#include <optional>
#include <string>

#include "paceline/engine/collectives/planning/cost_model.h"

namespace paceline {

// Costs whose repetitions differ by more were measured on a machine that was busy with something
// else.
inline constexpr double kSteadySpread = 0.3;

// Where costs come from, for people: their origin, and that they are noisy where they are.
std::string provenance(const CostModel& costs);

// The text of the file, and back; throws a std::exception for any other text.
std::string to_text(const CostModel& costs);
CostModel costs_from_text(const std::string& text);

// $PACELINE_CALIBRATION, otherwise $XDG_CACHE_HOME or ~/.cache, then paceline/costs.json; empty
// when there is no home, or the variable is "off".
std::filesystem::path calibration_path();
// Error(kSystem) with the path.
void save_calibration(const CostModel& costs, const std::filesystem::path& path);
// Empty when there is no such file. Error(kCorrupt) naming the path and what is wrong for one that
// save_calibration() did not write.
std::optional<CostModel> load_calibration(const std::filesystem::path& path);

}  // namespace paceline
