#pragma once

// The options of `paceline bench`: each declared once in a table that fills BenchOptions.

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
  kSimulate = 4,   // a cluster that is not at hand
  kExplain = 8,    // which algorithm, and why
  kPredict = 16,   // planned and simulated beside measured
};

inline constexpr long kMaxBenchRounds = 1000, kMaxBenchSeconds = 86400;

// As a file's name.
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

// The items of a list with commas.
std::vector<std::string> items_of(const std::string& text);
template <class T>
void add_once(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}
// Throws UsageError.
void read_sizes(const Option& option, std::vector<std::size_t>& sizes);

void declare_bench_options(OptionTable& table, BenchOptions& options);

// Reads what `table` took into `options`, which it was declared with. `words` name operations;
// `num_cores` is the default number of ranks. Throws UsageError: flag, value and range named.
void check_bench_options(const OptionTable& table, const std::vector<std::string>& words,
                         int num_cores, BenchOptions& options);

// What `paceline bench` is asked to do, and what does not go together with it: every option that
// would be ignored is an error or a note, so that it is not believed to count.

BenchMode mode_of(const OptionTable& table);

// Each throws UsageError, which says what to type instead.

// `words` name operations.
void require_meaning(const OptionTable& table, const std::vector<std::string>& words,
                     BenchMode mode);
// Ranks that a launcher started must not all start ranks of their own. `command` is what was typed.
void require_place(const OptionTable& table, BenchMode mode, const LaunchEnvironment& who,
                   const std::string& command);
void require_transport(const BenchOptions& options);
// Operations that the algorithm does not serve, beside one that it does, are added to `notes`.
void require_algorithm(const BenchOptions& options, std::vector<std::string>& notes);

}  // namespace paceline::apps
