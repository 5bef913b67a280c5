#pragma once

// Measures what communication costs on a machine, and keeps it in a file that later groups choose
// their algorithms by: JSON with the host's name, the date and how far the repetitions of the
// measurement differed. Rank 0's file counts for all ranks.

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/selection/cost_model.h"

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

class ProcessGroup;

// By how much the repetitions of one quantity differed, as a part of it; "network rate", "copy",
// ...
struct QuantitySpread {
  std::string_view quantity;
  double spread = 0;
};

struct Calibration {
  CostModel costs;
  std::vector<QuantitySpread> spreads;  // of what was measured; on rank 0, empty elsewhere

  bool is_steady() const { return costs.spread <= kSteadySpread; }
};

// Measures a machine's costs with the group at hand, as `paceline bench --calibrate` does.
// Collective; takes about a second, more over a slow network. Everything is measured several times,
// one quantity after the other and then all again, so that what else runs for a while spoils one
// repetition of each and not all of one. What the group cannot show stays as `known` on rank 0: a
// group on one host says nothing of the network, one on several hosts nothing of sockets inside
// one, unless two of its ranks share a host. Every rank gets rank 0's numbers.
Calibration measure_costs(ProcessGroup& group, const CostModel& known = {});

// What several measurements together say: of each quantity their median, and how far they differ
// but for the least and the most. Quantities that are equal in all were not measured. Pure.
// Requires: at least 5.
Calibration agree_on_costs(std::span<const CostModel> repetitions);

// Why `fresh` should not take the place of `kept`, for people; empty when it may: it is steady, or
// what is kept is not either.
std::string why_not_replace(const std::optional<CostModel>& kept, const Calibration& fresh);

}  // namespace paceline
