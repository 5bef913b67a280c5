#pragma once

// The options of `paceline bench`: declared once for CLI11 (help), then checked.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "paceline/bench/cluster.h"
#include "paceline/bench/session.h"
#include "paceline/transport/connect.h"

namespace paceline::apps {

// As typed. Empty: not given.
struct BenchTexts {
  std::vector<std::string> ops;
  std::string nproc_per_node, sizes, dtype, placement, memory, buffers, rounds, calls, timeout;
  std::string peer, transport, json, csv, html, simulate, algorithm;
  bool check = false, no_bind = false, calibrate = false, explain = false, predict = false;
  bool keep_noisy = false;
  bool help = false;
};

enum class BenchMode {
  kMeasure,    // side by side with others
  kCalibrate,  // the costs that the planner goes by
  kSimulate,   // a cluster that is not at hand
  kExplain,    // which algorithm, and why
  kPredict,    // planned and simulated beside measured
};

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

void declare_bench_options(CLI::App& app, BenchTexts& texts);

// Throws UsageError: flag, value and range named. `num_cores` is the default number of ranks.
BenchOptions check_bench_options(const BenchTexts& texts, int num_cores);

}  // namespace paceline::apps
