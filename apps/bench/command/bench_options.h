#pragma once

// The options of `paceline bench`: each declared once in a table that fills BenchOptions, and
// checked against the mode. An option that would be ignored is refused or noted, so that nobody
// assumes that it had an effect.

#include <algorithm>
#include <string>
#include <vector>

#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/transport/formation/connect.h"

#include "apps/bench/collective_session.h"
#include "apps/bench/forecast.h"
#include "apps/cli/option_table.h"

namespace paceline::apps {

// The traits of an option are the modes in which it has a meaning.
enum BenchMode : unsigned {
  kMeasure = 1,    // side by side with others
  kCalibrate = 2,  // the costs that the planner goes by
  kSimulate = 4,   // a cluster described in words
  kExplain = 8,    // which algorithm, and why
  kPredict = 16,   // planned and simulated beside measured
};

// The name of a file that means standard output.
inline constexpr const char* kStandardOutput = "-";

struct BenchOptions {
  BenchMode mode = BenchMode::kMeasure;
  bench::SessionOptions session;
  bench::Cluster cluster;    // kSimulate
  bool explains = false;     // kSimulate: all algorithms
  bool keeps_noisy = false;  // kCalibrate: also in place of a steadier measurement
  TransportKind transport = TransportKind::kAuto;
  std::string json, csv, html;  // files; empty: not wanted
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
// The peers that the option names. `yardsticks` are allowed as well, but left to the caller to add.
// Throws UsageError.
std::vector<std::string> read_peers(const Option& option, bench::Subject subject,
                                    const std::vector<std::string>& yardsticks);
// Options of both kinds of measurements, with calls and with collectives.
void declare_rounds(OptionTable& table, bench::TurnOptions& options, unsigned traits = 0);
void declare_turn_limit(OptionTable& table, bench::TurnOptions& options, unsigned traits = 0);
void declare_json(OptionTable& table, std::string& json, unsigned traits = 0);

void declare_bench_options(OptionTable& table, BenchOptions& options);

// Reads what `table` took into `options`, which it was declared with. `words` name operations;
// `num_cores` is the default number of ranks. Throws UsageError: flag, value and range named.
void check_bench_options(const OptionTable& table, const std::vector<std::string>& words,
                         int num_cores, BenchOptions& options);

BenchMode mode_of(const OptionTable& table);

// Each function below throws UsageError, which says what to type instead. `words` name operations.
void require_meaning(const OptionTable& table, const std::vector<std::string>& words,
                     BenchMode mode);
// Ranks that a launcher started must not all start ranks of their own. `command` is what was typed.
void require_place(const OptionTable& table, BenchMode mode, const LaunchEnvironment& who,
                   const std::string& command);
// For a measurement, which starts `what` ("ranks") of its own; `advice` follows the message.
void require_no_launcher(const LaunchEnvironment& who, const char* what, const std::string& advice);
void require_transport(const BenchOptions& options);
// Operations that the algorithm does not serve, beside one that it does, are added to `notes`.
void require_algorithm(const BenchOptions& options, std::vector<std::string>& notes);

}  // namespace paceline::apps
