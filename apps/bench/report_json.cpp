
#include "paceline/engine/core/json_text.h"

#include "apps/bench/call_report.h"
#include "apps/bench/report.h"

namespace paceline::bench {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(const Row& row) {
  const Spread spread = row.spread();
  OrderedJson json{{"peer", row.peer},
                   {"operation", name_of(row.op)},
                   {"dtype", paceline::name_of(row.dtype)},
                   {"placement", name_of(row.placement)},
                   {"memory", name_of(row.memory)},
                   {"buffers", row.fresh ? "fresh" : "warm"},
                   {"checked", row.checked},
                   {"ranks", row.ranks},
                   {"bytes", row.bytes},
                   {"median", spread.median},
                   {"p95", row.p95_us()},
                   {"p99", row.p99_us()},
                   {"min", row.min_us()},
                   {"max", row.max_us()},
                   {"algbw", row.algbw()},
                   {"busbw", row.busbw()},
                   {"rounds", row.rounds.size()}};
  for (const Round& round : row.rounds) {
    json["round_medians"].push_back(round.median);
    json["round_calls"].push_back(round.calls);
  }
  if (!row.ratios.empty()) json["time_to_paceline"] = row.ratios;
  return json;
}

OrderedJson json_of(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"memory_gib", machine.memory_gib},
          {"kernel", machine.kernel}};
}

OrderedJson json_of(const ReportHead& report) {
  OrderedJson json{{"date", report.date},
                   {"command", report.command},
                   {"paceline_version", report.version},
                   {"variables", report.variables},
                   {"machine", json_of(report.machine)},
                   {"peers", OrderedJson::array()},
                   {"missing", report.missing},
                   {"notes", report.notes}};
  for (const Participant& participant : report.participants) {
    json["peers"].push_back({{"name", participant.name},
                             {"title", participant.title},
                             {"version", participant.version}});
  }
  return json;
}

OrderedJson json_of(const CallRow& row) {
  const Spread spread = row.spread();
  OrderedJson json{
      {"peer", row.peer},        {"way", name_of(row.way)},   {"measure", name_of(row.measure)},
      {"bytes", row.bytes},      {"figure", row.figure.name}, {"unit", row.figure.unit},
      {"median", spread.median}, {"min", spread.min},         {"max", spread.max},
      {"rounds", row.rounds}};
  if (!row.ratios.empty()) json["paceline_to_it"] = row.ratios;
  return json;
}

}  // namespace

std::string to_json(const CallReport& report) {
  OrderedJson json = json_of(static_cast<const ReportHead&>(report));
  json["busy"] = report.busy;
  json["rows"] = OrderedJson::array();
  for (const CallRow& row : report.rows) json["rows"].push_back(json_of(row));
  return json_text(json, 1) + "\n";
}

std::string to_json(const Report& report) {
  OrderedJson json = json_of(static_cast<const ReportHead&>(report));
  json["units"] = {{"time", "us"}, {"bandwidth", "1e9 bytes/s"}};
  json["rows"] = OrderedJson::array();
  for (const Row& row : report.rows) json["rows"].push_back(json_of(row));
  return json_text(json, 1) + "\n";
}

}  // namespace paceline::bench
