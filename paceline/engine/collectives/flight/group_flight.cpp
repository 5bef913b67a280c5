#include "paceline/engine/collectives/flight/group_flight.h"

#include <filesystem>

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/core/log.h"

namespace paceline {
namespace {

constexpr const char* kVerdictPrefix = "; by the records of this host, ";

}  // namespace

std::shared_ptr<FlightRecorder> open_flight_recorder(const LaunchEnvironment& environment,
                                                     const GetVariable& variable,
                                                     std::shared_ptr<Timeline> timeline) {
  const auto directory = variable("PACELINE_FLIGHT_DIR");
  if (!directory || directory->empty() || environment.world_size == 1) return nullptr;
  FlightOptions options;
  options.directory = std::filesystem::absolute(*directory);
  options.rank = environment.rank;
  options.world_size = environment.world_size;
  options.generation = environment.restart_count;
  options.job = environment.job_id;
  options.timeline = std::move(timeline);
  options.keep = variable("PACELINE_FLIGHT_KEEP") == "1";
  try {
    return std::make_shared<FlightRecorder>(options);
  } catch (const Error& error) {
    log::warning(fmt::format("operations are not recorded: {}", error.what()));
    return nullptr;
  }
}

std::string verdict_of_records(const FlightRecorder* recorder, std::string_view group) {
  if (recorder == nullptr) return "";
  try {
    return kVerdictPrefix + explain(read_flights(recorder->directory()).flights, group).sentence;
  } catch (const Error& problem) {
    return fmt::format("{}there is no verdict: {}", kVerdictPrefix, problem.what());
  }
}

Error with_flight_records(const FlightRecorder& recorder, const Error& error) {
  std::string text = error.what();
  if (error.code() == ErrorCode::kTimeout && text.find(kVerdictPrefix) == std::string::npos) {
    text += verdict_of_records(&recorder);
  }
  return error.reworded(fmt::format("{}; flight records: {} (paceline explain {})", text,
                                    recorder.directory(), recorder.directory()));
}

GroupFlight::GroupFlight(std::shared_ptr<FlightRecorder> recorder, const std::string& name,
                         std::uint64_t hash, int rank, int world_size, int generation)
    : recorder_(std::move(recorder)), hash_(hash) {
  if (recorder_) group_ = recorder_->add_group(name, hash, rank, world_size, generation);
}

FlightCall GroupFlight::describe(const Collective& call, bool asynchronous) const {
  return {.op = static_cast<std::uint8_t>(call.part_of.value_or(call.op)),
          .reduce_op = static_cast<std::uint8_t>(call.reduce_op),
          .dtype = call.dtype,
          .asynchronous = asynchronous,
          .group = group_,
          .peer = call.root,
          .tag = 0,
          .count = call.count,
          .group_hash = hash_};
}

FlightTicket GroupFlight::enter(const Collective& call) const {
  return recorder_ ? recorder_->enter(describe(call, true)) : FlightTicket{};
}

FlightTicket GroupFlight::start(const Collective& call, FlightTicket ticket,
                                std::uint32_t sequence) const {
  if (!recorder_) return {};
  if (ticket.id == 0) return recorder_->start(describe(call, false), sequence);
  recorder_->start(ticket, sequence);
  return ticket;
}

FlightTicket GroupFlight::start(Op op, const PointToPointCall& call, bool asynchronous) const {
  if (!recorder_) return {};
  FlightCall recorded;
  recorded.op = static_cast<std::uint8_t>(op);
  recorded.dtype = call.dtype;
  recorded.asynchronous = asynchronous;
  recorded.group = group_;
  recorded.peer = call.peer;
  recorded.tag = call.tag;
  recorded.count = call.count;
  recorded.group_hash = hash_;
  return recorder_->start(recorded, 0);
}

Error GroupFlight::failed(FlightTicket ticket, const Error& error) const {
  if (!recorder_) return error;
  recorder_->finish(ticket, error.code());
  recorder_->note_failure(error.what());
  return with_flight_records(*recorder_, error);
}

void GroupFlight::note_failure(const std::string& text) const {
  if (recorder_) recorder_->note_failure(text);
}

}  // namespace paceline
