#pragma once

// The options of `paceline bench`: declared once for CLI11 (help), then checked.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "paceline/bench/session.h"

namespace paceline::apps {

// As typed. Empty: not given.
struct BenchTexts {
  std::vector<std::string> ops;
  std::string np, sizes, dtype, placement, memory, buffers, rounds, calls, timeout;
  std::string peer, transport, json, csv, html;
  bool check = false, no_bind = false, help = false;
};

struct BenchOptions {
  bench::SessionOptions session;
  std::string json, csv, html;  // files; empty: not wanted
};

void declare_bench_options(CLI::App& app, BenchTexts& texts);

// Throws UsageError: flag, value and range named. `num_cores` is the default number of ranks.
BenchOptions check_bench_options(const BenchTexts& texts, int num_cores);

}  // namespace paceline::apps
