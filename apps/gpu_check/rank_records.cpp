#include "apps/gpu_check/rank_records.h"

#include <chrono>

#include <fmt/format.h>

#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"

namespace paceline::gpu_check {
namespace {

std::string path_of(const std::string& folder, int rank) {
  return fmt::format("{}/records-{}.jsonl", folder, rank);
}

}  // namespace

RankRecords::RankRecords(const std::string& folder, int rank) : path_(path_of(folder, rank)) {}

void RankRecords::read() {
  std::ifstream file(path_, std::ios::binary);
  file.seekg(position_);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    position_ = file.tellg();
    take(line);
  }
}

void RankRecords::take(const std::string& line) {
  const auto fields = parse_json_or_discard(line);
  if (!fields.is_object()) return;
  if (const auto begin = fields.find("begin"); begin != fields.end() && begin->is_string())
    begun_.insert(begin->get<std::string>());
  const auto text = [&](const char* name) {
    const auto field = fields.find(name);
    return field != fields.end() && field->is_string() ? field->get<std::string>() : std::string();
  };
  const auto number = [&](const char* name) {
    const auto field = fields.find(name);
    return field != fields.end() && field->is_number() ? field->get<double>() : 0.0;
  };
  const std::string name = text("end");
  if (name.empty()) return;
  RankRecord record{.outcome = {.name = name,
                                .verdict = verdict_of(text("verdict")),
                                .text = text("text"),
                                .advice = text("advice"),
                                .seconds = number("seconds")},
                    .time = number("time")};
  if (const auto figures = fields.find("figures"); figures != fields.end() && figures->is_object())
    record.outcome.figures = json_text(*figures);
  ended_.emplace(name, std::move(record));
}

const RankRecord* RankRecords::end_of(const std::string& check) const {
  const auto found = ended_.find(check);
  return found == ended_.end() ? nullptr : &found->second;
}

RecordWriter::RecordWriter(const std::string& folder, int rank)
    : path_(path_of(folder, rank)), file_(path_, std::ios::app) {}

void RecordWriter::begin(const std::string& check) {
  write(json_text(nlohmann::json{{"begin", check}}));
}

void RecordWriter::end(const CheckOutcome& outcome) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::json line = {{"end", outcome.name},        {"verdict", name_of(outcome.verdict)},
                         {"text", outcome.text},       {"advice", outcome.advice},
                         {"seconds", outcome.seconds}, {"time", now.count()}};
  if (!outcome.figures.empty()) line["figures"] = parse_json(outcome.figures);
  write(json_text(line));
}

void RecordWriter::write(const std::string& line) {
  file_ << line << '\n' << std::flush;
  if (!file_) throw system_error("writing " + path_);
}

}  // namespace paceline::gpu_check
