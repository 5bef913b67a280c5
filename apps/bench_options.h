#pragma once

// The options of `paceline bench`: each declared once in a table that fills BenchOptions.

#include <algorithm>
#include <string>
#include <vector>

#include "paceline/engine/transport/connect.h"

#include "apps/bench/cluster.h"
#include "apps/bench/session.h"
#include "apps/option_table.h"

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

}  // namespace paceline::apps
