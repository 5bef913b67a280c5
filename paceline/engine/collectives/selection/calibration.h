#pragma once

// Measures the costs of communication on a machine, and keeps them in a JSON file by which later
// groups choose their algorithms. The file also has the host's name, the date and the spread of the
// repetitions. Rank 0's file applies to all ranks.

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/selection/cost_model.h"

namespace paceline {

// Costs whose repetitions differ by more than this fraction were measured on a machine that was
// busy with something else.
inline constexpr double kSteadySpread = 0.3;

// A text for users about the origin of costs, and whether they are noisy.
std::string provenance(const CostModel& costs);

// Convert costs to the text of the file and back. costs_from_text() throws an exception derived
// from std::exception for any other text.
std::string to_text(const CostModel& costs);
CostModel costs_from_text(const std::string& text);

// The path in $PACELINE_CALIBRATION or, if that is not set, paceline/costs.json in $XDG_CACHE_HOME
// or ~/.cache. Empty when there is no home directory, or when the variable is "off".
std::filesystem::path calibration_path();
// Writes the file. Error(kSystem) with the path.
void save_calibration(const CostModel& costs, const std::filesystem::path& path);
// Reads the file; empty if it does not exist. Error(kCorrupt) with the path and the reason if it
// cannot be read or is not a calibration.
std::optional<CostModel> load_calibration(const std::filesystem::path& path);

class ProcessGroup;

// The spread of one quantity's repetitions, as a fraction of the median; names are "network rate",
// "copy", ...
struct QuantitySpread {
  std::string_view quantity;
  double spread = 0;
};

struct Calibration {
  CostModel costs;
  std::vector<QuantitySpread> spreads;  // one for each measured quantity on rank 0; empty elsewhere

  bool is_steady() const { return costs.spread <= kSteadySpread; }
};

// Measures a machine's costs with this group, as `paceline bench --calibrate` does. Collective;
// takes about a second, more over a slow network. All quantities are measured in turn, several
// times, so that a short disturbance spoils one repetition of each quantity instead of all
// repetitions of one. A quantity that the group cannot measure keeps its value in rank 0's `known`:
// the network, if all ranks are on one host; sockets, if no other rank is on rank 0's host; and
// meetings, if there are several hosts or the transport is TCP. Every rank gets rank 0's numbers.
Calibration measure_costs(ProcessGroup& group, const CostModel& known = {});

// Combines several measurements: the median of each quantity, and its spread without the least and
// the greatest value. A quantity that is equal in all repetitions counts as not measured. Pure.
// Requires: at least 5 repetitions.
Calibration agree_on_costs(std::span<const CostModel> repetitions);

// Explains to the user why `fresh` should not replace `kept`. Empty if `fresh` may replace it:
// `fresh` is steady, or `kept` is not steady either or does not exist.
std::string why_not_replace(const std::optional<CostModel>& kept, const Calibration& fresh);

}  // namespace paceline
