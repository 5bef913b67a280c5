#include "apps/bench/forecast.h"

#include <fmt/format.h>

#include "paceline/engine/core/counted.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/json_text.h"

#include "apps/bench/simulated_call.h"

namespace paceline::bench {
namespace {

constexpr const char* kColumns = "{:>8} {:1} {:<10} {:>13} {:>11} {:>8} {:>8} {:>10} {:>11}";

// Of an algorithm that is only there for comparison: about a second.
constexpr std::size_t kMostStepsBeside = 500'000;

void simulate_into(Forecast& forecast, const Planner& planner, std::size_t count) {
  const Candidate& candidate = forecast.candidate;
  SimulatedCall call{forecast.op, forecast.dtype, count, candidate.algorithm, candidate.chunk};
  if (!forecast.is_chosen) call.most_steps = kMostStepsBeside;
  try {
    forecast.simulated = simulate_call(call, planner);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    forecast.refusal = forecast.is_chosen
                           ? error.what()
                           : fmt::format(
                                 "not simulated beside the chosen one: it takes long; "
                                 "alone: --algorithm {}",
                                 name_of(candidate.algorithm));
  }
}

std::string microseconds(double seconds) {
  const double us = seconds * 1e6;
  return fmt::format("{:.{}f}", us, us < 10 ? 2 : us < 1000 ? 1 : 0);
}

// By which `predicted` differs from `measured`: "+12%".
std::string error_text(double predicted, double measured) {
  return fmt::format("{:+.0f}%", (predicted / measured - 1) * 100);
}

}  // namespace

std::vector<Forecast> forecast(const Planner& planner, Op op, Dtype dtype, std::size_t bytes,
                               Which which) {
  const int world = planner.hosts().world_size();
  const std::size_t count = count_for(op, dtype, world, bytes);
  std::vector<Forecast> forecasts;
  for (const Candidate& candidate : planner.candidates({op, dtype, count})) {
    Forecast one;
    one.op = op;
    one.dtype = dtype;
    one.world_size = world;
    one.bytes = op == Op::kBarrier ? 0 : bytes_of(op, dtype, world, count);
    one.candidate = candidate;
    one.is_chosen = forecasts.empty();
    simulate_into(one, planner, count);
    forecasts.push_back(std::move(one));
    if (which == Which::kChosen) break;
  }
  return forecasts;
}

std::string forecast_heading(const Forecast& first) {
  std::string text(paceline::name_of(first.op));
  if (first.op != Op::kBarrier) text += fmt::format(", {}", paceline::name_of(first.dtype));
  text += fmt::format(", {}\n\n", counted(first.world_size, "rank"));
  text += fmt::format(kColumns, "size", "", "algorithm", "simulated µs", "planned µs", "algbw",
                      "busbw", "messages", "network");
  if (first.measured_s) {
    text += fmt::format(" {:>12} {:>10} {:>8}", "measured µs", "simulated", "planned");
  }
  return text + "\n";
}

std::string forecast_rows(const std::vector<Forecast>& forecasts) {
  std::string text;
  for (const Forecast& row : forecasts) {
    const bool is_timed = row.simulated.has_value();
    const double seconds = is_timed ? row.simulated->seconds : row.candidate.seconds;
    const double algbw = algorithm_bandwidth(row.bytes, seconds);
    const auto bandwidth = [&](double value) {
      return row.bytes == 0 ? std::string("-") : fmt::format("{:.3f}", value);
    };
    text += fmt::format(kColumns, row.bytes == 0 ? "-" : size_text(row.bytes),
                        row.is_chosen ? "*" : "", paceline::name_of(row.candidate.algorithm),
                        is_timed ? microseconds(seconds) : "-", microseconds(row.candidate.seconds),
                        bandwidth(algbw), bandwidth(algbw * bus_factor(row.op, row.world_size)),
                        is_timed ? fmt::to_string(row.simulated->num_messages) : "-",
                        is_timed ? size_text(row.simulated->network_bytes) : "-");
    if (row.measured_s) {
      text += fmt::format(" {:>12} {:>10} {:>8}", microseconds(*row.measured_s),
                          is_timed ? error_text(seconds, *row.measured_s) : "-",
                          error_text(row.candidate.seconds, *row.measured_s));
    }
    text += row.refusal.empty() ? "\n" : fmt::format("  {}\n", row.refusal);
  }
  return text;
}

std::string to_json(const std::vector<Forecast>& forecasts, const Planner& planner) {
  using Json = nlohmann::ordered_json;
  const Hosts& hosts = planner.hosts();
  Json json{{"costs", planner.costs().origin},
            {"hosts", hosts.size()},
            {"ranks", hosts.world_size()},
            {"link_bytes_per_s", planner.costs().network.bytes_per_s},
            {"latency_s", planner.costs().network.latency_s},
            {"units", {{"time", "us"}, {"bandwidth", "1e9 bytes/s"}}},
            {"rows", Json::array()}};
  for (const Forecast& row : forecasts) {
    Json one{{"operation", paceline::name_of(row.op)},
             {"dtype", paceline::name_of(row.dtype)},
             {"bytes", row.bytes},
             {"algorithm", paceline::name_of(row.candidate.algorithm)},
             {"chosen", row.is_chosen},
             {"planned", row.planned_us()}};
    if (row.simulated) {
      one["simulated"] = row.simulated->seconds * 1e6;
      one["messages"] = row.simulated->num_messages;
      one["network_bytes"] = row.simulated->network_bytes;
    } else {
      one["refusal"] = row.refusal;
    }
    if (row.measured_s) one["measured"] = *row.measured_s * 1e6;
    json["rows"].push_back(std::move(one));
  }
  return json_text(json, 1) + "\n";
}

}  // namespace paceline::bench
