#include "paceline/launcher/diagnosis/flight_digest.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "paceline/engine/collectives/flight/positions.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype.h"
#include "paceline/engine/core/host.h"
#include "paceline/engine/core/json_text.h"

namespace paceline::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostBytes = 384 << 10;
constexpr std::size_t kMostUnfinished = 16;  // of one rank
constexpr std::size_t kLongestFailure = 300;

template <class Clock>
std::int64_t now_of() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

bool is_unfinished(const FlightOperation& operation) {
  return operation.state != FlightState::kDone;
}

// In the order of their beginnings.
std::vector<const FlightOperation*> telling_operations(const Flight& flight) {
  std::set<const FlightOperation*> chosen;
  std::size_t num_unfinished = 0;
  for (const FlightOperation& operation : flight.operations) {
    if (is_unfinished(operation) && ++num_unfinished <= kMostUnfinished) chosen.insert(&operation);
  }
  for (const auto& group : flight::find_positions(std::span(&flight, 1))) {
    for (const flight::Position& position : group.ranks) {
      if (position.last != nullptr) chosen.insert(position.last);
    }
  }
  if (!flight.operations.empty()) chosen.insert(&flight.operations.back());
  return {chosen.begin(), chosen.end()};  // they are of one array
}

Json to_json(const FlightOperation& operation, std::uint64_t now) {
  const auto ago = [now](std::uint64_t moment) { return now > moment ? now - moment : 0; };
  const FlightCall& call = operation.call;
  return Json::array({operation.id, call.op, call.reduce_op, static_cast<int>(call.dtype),
                      call.asynchronous, call.group, call.peer, call.tag, call.count,
                      call.group_hash, operation.sequence, static_cast<int>(operation.state),
                      operation.error ? static_cast<int>(*operation.error) : -1, operation.thread,
                      ago(operation.entered), operation.started == 0 ? -1 : 1,
                      operation.ended == 0 ? Json() : Json(ago(operation.ended))});
}

Json to_json(const Flight& flight) {
  Json json = {{"rank", flight.rank},
               {"world", flight.world_size},
               {"generation", flight.generation},
               {"pid", flight.pid},
               {"host", flight.host},
               {"end", static_cast<int>(flight.end)},
               {"failure", flight.failure.substr(0, kLongestFailure)},
               {"process", static_cast<int>(flight.process)},
               {"begun", flight.num_begun},
               {"groups", Json::array()},
               {"operations", Json::array()}};
  for (const FlightGroup& group : flight.groups) {
    json["groups"].push_back(Json::array(
        {group.number, group.hash, group.name, group.rank, group.world_size, group.generation}));
  }
  for (const FlightOperation* operation : telling_operations(flight)) {
    json["operations"].push_back(to_json(*operation, flight.now));
  }
  return json;
}

// Error(kCorrupt) unless it is from `least` to `most`.
template <class T>
T number_in(const Json& json, std::int64_t least, std::int64_t most) {
  const auto number = json.get<std::int64_t>();
  if (number < least || number > most) {
    fail(ErrorCode::kCorrupt, "a digest of flight records has {} for {} to {}", number, least,
         most);
  }
  return static_cast<T>(number);
}

FlightOperation operation_of(const Json& json, std::uint64_t now, std::int64_t wall) {
  const auto moment = [&](const Json& ago) {
    return now - std::min(ago.get<std::uint64_t>(), now - 1);
  };
  FlightOperation operation;
  operation.id = json.at(0);
  operation.call = {json.at(1), json.at(2), number_in<Dtype>(json.at(3), 0, kAllDtypes.size() - 1),
                    json.at(4), json.at(5), json.at(6),
                    json.at(7), json.at(8), json.at(9)};
  operation.sequence = json.at(10);
  operation.state = number_in<FlightState>(json.at(11), 1, 4);
  const auto error = number_in<int>(json.at(12), -1, static_cast<int>(ErrorCode::kSystem));
  if (error >= 0) operation.error = static_cast<ErrorCode>(error);
  operation.thread = json.at(13);
  operation.entered = moment(json.at(14));
  if (json.at(15).get<int>() > 0) operation.started = operation.entered;
  if (!json.at(16).is_null()) operation.ended = moment(json.at(16));
  operation.entered_wall = wall - static_cast<std::int64_t>(now - operation.entered);
  return operation;
}

Flight flight_of(const Json& json, std::uint64_t now, std::int64_t wall) {
  Flight flight;
  flight.world_size = number_in<int>(json.at("world"), 1, 1 << 24);
  flight.rank = number_in<int>(json.at("rank"), 0, flight.world_size - 1);
  flight.generation = json.at("generation");
  flight.pid = json.at("pid");
  flight.host = json.at("host").get<std::string>();
  flight.end = number_in<FlightEnd>(json.at("end"), 0, 3);
  flight.failure = json.at("failure").get<std::string>();
  flight.process = number_in<FlightProcess>(json.at("process"), 0, 3);
  flight.num_begun = json.at("begun");
  flight.now = now;
  flight.boot = boot_id();  // whose clock the times are on
  for (const Json& group : json.at("groups")) {
    flight.groups.push_back(
        {group.at(0), group.at(1), group.at(2), group.at(3), group.at(4), group.at(5)});
  }
  for (const Json& operation : json.at("operations")) {
    flight.operations.push_back(operation_of(operation, now, wall));
  }
  return flight;
}

}  // namespace

std::string encode_digest(std::span<const Flight> flights) {
  std::string text = "[";
  for (const Flight& flight : flights) {
    const std::string one = json_text(to_json(flight));
    if (text.size() + one.size() + 2 > kMostBytes) break;
    text += (text.size() > 1 ? "," : "") + one;
  }
  return text + "]";
}

std::vector<Flight> decode_digest(const std::string& text) {
  const auto now = static_cast<std::uint64_t>(now_of<std::chrono::steady_clock>());
  const std::int64_t wall = now_of<std::chrono::system_clock>();
  std::vector<Flight> flights;
  try {
    for (const Json& json : parse_json(text)) flights.push_back(flight_of(json, now, wall));
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, "a digest of flight records makes no sense: {}", error.what());
  }
  return flights;
}

}  // namespace paceline::launcher
