#pragma once

// The options of `paceline bench`: each is declared once, in a table that fills BenchOptions, and
// checked against the mode. An option that would have no effect is refused or reported in a note.

#include <algorithm>
#include <string>
#include <vector>

#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/transport/formation/connect.h"

#include "apps/bench/collective_session.h"
#include "apps/bench/forecast.h"
#include "apps/cli/option_table.h"

namespace paceline::apps {

// The traits of an option are the modes in which it has an effect.
enum BenchMode : unsigned {
  kMeasure = 1,    // measures Paceline and other libraries
  kCalibrate = 2,  // measures the costs that the planner uses
  kSimulate = 4,   // predicts for a cluster described in words
  kExplain = 8,    // shows the chosen algorithm and the reason
  kPredict = 16,   // compares predictions with measurements
};

// The file name that means standard output.
inline constexpr const char* kStandardOutput = "-";

struct BenchOptions {
  BenchMode mode = BenchMode::kMeasure;
  bench::SessionOptions session;
  bench::Cluster cluster;    // kSimulate
  bool explains = false;     // kSimulate: shows all algorithms
  bool keeps_noisy = false;  // kCalibrate: replaces even a steadier result
  TransportKind transport = TransportKind::kAuto;
  std::string json, csv, html;  // paths; empty: do not write
  bool writes_to_output() const {
    return json == kStandardOutput || csv == kStandardOutput || html == kStandardOutput;
  }
};

template <class T>
void add_once(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}
// Throws UsageError.
void read_sizes(const Option& option, std::vector<std::size_t>& sizes);
// The peers that the option names. The option may also name `yardsticks`, which are not returned:
// the caller adds them. Throws UsageError.
std::vector<std::string> read_peers(const Option& option, bench::Subject subject,
                                    const std::vector<std::string>& yardsticks);
// Declare options that measurements of calls and of collectives have in common.
void declare_rounds(OptionTable& table, bench::TurnOptions& options, unsigned traits = 0);
void declare_turn_limit(OptionTable& table, bench::TurnOptions& options, unsigned traits = 0);
void declare_json(OptionTable& table, std::string& json, unsigned traits = 0);

void declare_bench_options(OptionTable& table, BenchOptions& options);

// Reads the texts of the options in `table`, which must have been declared with `options`, and sets
// `options`. `words` name operations; `num_cores` is the default number of ranks. Throws
// UsageError, which names the flag, the value and the range.
void check_bench_options(const OptionTable& table, const std::vector<std::string>& words,
                         int num_cores, BenchOptions& options);

BenchMode mode_of(const OptionTable& table);

// Each function below throws UsageError, whose message tells the user what to type instead.
// Refuses options, and operations in `words`, that have no effect in the mode.
void require_effect(const OptionTable& table, const std::vector<std::string>& words,
                    BenchMode mode);
// Refuses a mode in which every rank that a launcher started would start ranks of its own, and a
// --nproc-per-node that differs from the launcher's number of ranks. `command` is the command as
// typed.
void require_fitting_launcher(const OptionTable& table, BenchMode mode,
                              const LaunchEnvironment& environment, const std::string& command);
// Throws if this process is one of several ranks of a launcher, because bench starts `what`
// ("ranks", "workers") of its own. `advice` is appended to the message.
void require_no_launcher(const LaunchEnvironment& environment, const char* what,
                         const std::string& advice);
void require_transport(const BenchOptions& options);
// Refuses an algorithm that supports none of the operations. If it supports only some of them, adds
// a note about the others to `notes`.
void require_algorithm(const BenchOptions& options, std::vector<std::string>& notes);

}  // namespace paceline::apps
