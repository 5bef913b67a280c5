#include "paceline/engine/telemetry/call_gauge_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/engine/telemetry/record_file.h"

namespace paceline {
namespace {

constexpr int kAttempts = 5;  // to read a table that is being written

std::vector<OpenCall> open_calls(const calls::Table& table) {
  std::vector<OpenCall> all;
  const auto count = std::min<std::uint64_t>(table.count, calls::kNumOpen);
  for (std::size_t i = 0; i < count; ++i) {
    const calls::Open& open = table.open[i];
    const auto last = static_cast<std::uint64_t>(OpenState::kRunning);
    if (open.state == 0 || open.state > last) continue;
    all.push_back({.worker = printable(open.worker),
                   .other = printable(open.other),
                   .method = printable(open.method),
                   .number = open.number,
                   .caller = open.caller,
                   .begun = open.begun,
                   .state = static_cast<OpenState>(open.state)});
  }
  return all;
}

CallFigures figures_of(const calls::Method& method, CallSide side) {
  return {.side = side,
          .method = printable(method.name),
          .begun = method.begun,
          .started = method.started,
          .failed = method.failed,
          .ended = {method.ended.begin(), method.ended.end()}};
}

bool read_file(const Fd& file, calls::File& to) {
  const auto bytes = std::as_writable_bytes(std::span(&to, 1));
  return read_whole_at(file.get(), 0, bytes) == static_cast<ssize_t>(bytes.size()) &&
         to.header.magic == calls::kMagic;
}

}  // namespace

std::uint64_t CallFigures::num_ended() const {
  return std::accumulate(ended.begin(), ended.end(), std::uint64_t{0});
}

// The counters are read one after the other. A call that begins and ends meanwhile may therefore be
// counted as ended, but not as begun.
std::uint64_t CallFigures::under_way() const {
  const std::uint64_t done = num_ended();
  return begun > done ? begun - done : 0;
}

std::uint64_t CallFigures::queued() const {
  if (side == CallSide::kCaller) return 0;
  return std::min(begun > started ? begun - started : 0, under_way());
}

std::optional<double> call_seconds(const std::vector<std::uint64_t>& ended, double share) {
  const auto all = std::accumulate(ended.begin(), ended.end(), std::uint64_t{0});
  if (all == 0) return {};
  const double wanted = share * static_cast<double>(all);
  double before = 0;
  for (std::size_t i = 0; i < ended.size(); ++i) {
    const auto here = static_cast<double>(ended[i]);
    if (here == 0 || before + here < wanted) {
      before += here;
      continue;
    }
    const auto begin = static_cast<double>(calls::bucket_begin(i));
    const auto end = static_cast<double>(calls::bucket_begin(i + 1));
    return (begin + (end - begin) * (wanted - before) / here) * 1e-9;
  }
  return {};
}

std::string call_gauge_name(int rank) { return fmt::format("rank-{:03}.calls", rank); }

std::optional<CallReading> read_call_gauge(const std::string& path) {
  const Fd file = open_to_read(path);
  if (!file) return {};
  const auto bytes = std::make_unique<calls::File>();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (!read_file(file, *bytes)) return {};
    const bool is_whole = std::all_of(bytes->tables.begin(), bytes->tables.end(),
                                      [](const auto& table) { return table.stamp % 2 == 0; });
    if (is_whole) break;
  }
  const calls::Header& header = bytes->header;
  CallReading reading{.rank = header.rank,
                      .pid = header.pid,
                      .worker = printable(header.worker),
                      .host = printable(header.host),
                      .looked = header.looked,
                      .references = header.references,
                      .objects = header.objects};
  const ProcessSight sight = look_at_process(header);
  reading.now = sight.now;
  reading.process = sight.process;
  for (const CallSide side : {CallSide::kCaller, CallSide::kCallee}) {
    const auto index = static_cast<std::size_t>(side);
    for (const calls::Method& method : bytes->methods[index]) {
      if (method.number != 0) reading.methods.push_back(figures_of(method, side));
    }
    reading.open[index] = open_calls(bytes->tables[index]);
  }
  return reading;
}

std::vector<CallReading> read_call_gauges(const std::string& directory) {
  std::vector<CallReading> all;
  std::error_code error;
  for (const std::string& path : records_in(directory, ".calls", error)) {
    auto reading = read_call_gauge(path);
    if (reading && path.ends_with("/" + call_gauge_name(reading->rank)))
      all.push_back(std::move(*reading));
  }
  std::sort(all.begin(), all.end(),
            [](const CallReading& a, const CallReading& b) { return a.rank < b.rank; });
  return all;
}

}  // namespace paceline
