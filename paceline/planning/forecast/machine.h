#pragma once

// The hosts that a job is planned for: the present ones, or others described by a text:
// "hosts=64,ranks=8,link=100Gbit,latency=20us,cores=64,memory=512GB,mtbf=5000h,stragglers=5%".
//
// Thread safety: values and pure functions.

#include <cstdint>
#include <string>
#include <string_view>

#include "paceline/engine/collectives/selection/cost_model.h"

namespace paceline::planning {

struct Machine {
  int hosts = 1;
  int ranks_per_host = 1;
  // Cores of each host that compute; 0: enough for all threads of all ranks.
  double cores_per_host = 0;
  double memory_bytes = 0;  // of each host; 0: unknown, so everything fits
  CostModel links;

  // Failures and slow ranks.
  double mtbf_s = 0;         // mean time between failures of one host; 0: no failures
  double checkpoint_s = 30;  // how long saving stops the training
  double restart_s = 120;    // from a failure to the next step
  double interval_s = 0;     // between checkpoints; 0: the best interval
  // Standard deviation of a rank's time for the same work, as a share of that time.
  double stragglers = 0;

  int world_size() const { return hosts * ranks_per_host; }
  bool operator==(const Machine&) const = default;
};

// The largest number of ranks of a plan.
inline constexpr int kMaxPlannedRanks = 1'000'000;

// Returns `defaults`, changed by the settings in the text. The setting hosts= is required. Throws
// SettingError (engine/core/option_text.h), which names the invalid part and what is allowed.
Machine parse_machine(std::string_view text, const Machine& defaults);

// Returns, for instance, "64 hosts x 8 ranks, 100 Gbit/s, 20 µs, ...".
std::string describe(const Machine& machine);

}  // namespace paceline::planning
