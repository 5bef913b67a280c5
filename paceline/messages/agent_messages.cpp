#include "paceline/messages/agent_messages.h"

#include <nlohmann/json.hpp>

#include "paceline/core/check.h"

namespace paceline::launch {
namespace {

using Json = nlohmann::json;

Json to_json(const Endpoint& endpoint) {
  return {{"host", endpoint.host}, {"port", endpoint.port}};
}

Endpoint endpoint_of(const Json& json) {
  return {json.at("host").get<std::string>(), json.at("port").get<std::uint16_t>()};
}

Json to_json(const Offer& offer) {
  return {{"store", to_json(offer.store)}, {"master", to_json(offer.master)}};
}

Offer offer_of(const Json& json) {
  return {endpoint_of(json.at("store")), endpoint_of(json.at("master"))};
}

Json to_json(const NodePlace& place) {
  return {{"generation", place.generation}, {"max_restarts", place.max_restarts},
          {"node_rank", place.node_rank},   {"num_nodes", place.num_nodes},
          {"first_rank", place.first_rank}, {"world_size", place.world_size}};
}

NodePlace place_of(const Json& json) {
  return {.generation = json.at("generation"),
          .max_restarts = json.at("max_restarts"),
          .node_rank = json.at("node_rank"),
          .num_nodes = json.at("num_nodes"),
          .first_rank = json.at("first_rank"),
          .world_size = json.at("world_size")};
}

Json to_json(const Joining& joining) {
  Json json = {{"type", "joining"},
               {"version", joining.version},
               {"run_id", joining.run_id},
               {"host", joining.host},
               {"num_ranks", joining.num_ranks},
               {"min_nodes", joining.min_nodes},
               {"max_nodes", joining.max_nodes},
               {"logical_shards", joining.logical_shards},
               {"stand_in", to_json(joining.stand_in)},
               {"offer", to_json(joining.offer)},
               {"next_generation", joining.next_generation}};
  if (joining.node_rank) json["node_rank"] = *joining.node_rank;
  return json;
}

Joining joining_of(const Json& json) {
  Joining joining{.version = json.at("version"),
                  .run_id = json.at("run_id"),
                  .host = json.at("host"),
                  .num_ranks = json.at("num_ranks"),
                  .min_nodes = json.at("min_nodes"),
                  .max_nodes = json.at("max_nodes"),
                  .logical_shards = json.at("logical_shards"),
                  .stand_in = endpoint_of(json.at("stand_in")),
                  .offer = offer_of(json.at("offer")),
                  .next_generation = json.at("next_generation")};
  if (json.contains("node_rank")) joining.node_rank = json.at("node_rank").get<int>();
  return joining;
}

Json to_json(const RankFailure& report) {
  const Failure& failure = report.failure;
  Json json = {
      {"type", "failure"},        {"generation", report.generation}, {"cause", failure.cause},
      {"end", failure.end},       {"exit_code", failure.exit_code},  {"signal", failure.signal},
      {"reason", failure.reason}, {"on_purpose", failure.on_purpose}};
  if (failure.at) json["at_ns"] = failure.at->count();
  return json;
}

RankFailure failure_of(const Json& json) {
  RankFailure report{json.at("generation"),
                     {.cause = json.at("cause"),
                      .end = json.at("end"),
                      .exit_code = json.at("exit_code"),
                      .signal = json.at("signal"),
                      .reason = json.at("reason"),
                      .on_purpose = json.at("on_purpose")}};
  if (json.contains("at_ns")) {
    report.failure.at = std::chrono::nanoseconds(json.at("at_ns").get<std::int64_t>());
  }
  return report;
}

Json to_json(const Finished& finished) {
  return {{"type", "finished"},
          {"generation", finished.generation},
          {"stopped_as_agreed", finished.stopped_as_agreed}};
}

Json to_json(const Stopped& stopped) {
  Json json = {{"type", "stopped"},
               {"generation", stopped.generation},
               {"lived_ms", stopped.lived.count()},
               {"offer", to_json(stopped.offer)}};
  if (stopped.steps) json["steps"] = *stopped.steps;
  return json;
}

Stopped stopped_of(const Json& json) {
  Stopped stopped{.generation = json.at("generation"),
                  .lived = std::chrono::milliseconds(json.at("lived_ms").get<std::int64_t>()),
                  .offer = offer_of(json.at("offer"))};
  if (json.contains("steps")) stopped.steps = json.at("steps").get<std::uint64_t>();
  return stopped;
}

Json to_json(const Leaving& leaving) { return {{"type", "leaving"}, {"signal", leaving.signal}}; }

Json to_json(const GivingUp& giving_up) {
  return {{"type", "giving_up"}, {"silence_ms", giving_up.silence.count()}};
}

Json to_json(const Standstill& standstill) {
  return {{"seconds", standstill.seconds}, {"steps", standstill.steps},
          {"idle", standstill.idle},       {"running", standstill.running},
          {"stopped", standstill.stopped}, {"waiting", standstill.waiting},
          {"missing", standstill.missing}};
}

Standstill standstill_of(const Json& json) {
  return {.seconds = json.at("seconds"),
          .steps = json.at("steps"),
          .idle = json.at("idle"),
          .running = json.at("running").get<std::vector<int>>(),
          .stopped = json.at("stopped").get<std::vector<int>>(),
          .waiting = json.at("waiting").get<std::vector<int>>(),
          .missing = json.at("missing").get<std::vector<int>>()};
}

Json to_json(const Whereabouts& whereabouts) {
  return {{"type", "whereabouts"},        {"generation", whereabouts.generation},
          {"round", whereabouts.round},   {"limit", whereabouts.limit},
          {"digest", whereabouts.digest}, {"standstill", to_json(whereabouts.standstill)}};
}

Json to_json(const Shares& shares) {
  Json json = {{"type", "shares"}, {"generation", shares.generation}, {"ranks", Json::array()}};
  for (const RankShare& one : shares.ranks) {
    json["ranks"].push_back(Json::array({one.rank, one.inside, one.num_operations}));
  }
  return json;
}

Shares shares_of(const Json& json) {
  Shares shares{.generation = json.at("generation")};
  for (const Json& one : json.at("ranks")) {
    shares.ranks.push_back({one.at(0), one.at(1), one.at(2)});
  }
  return shares;
}

Json to_json(const StartOrder& start) {
  Json json = {{"type", "start"},
               {"place", to_json(start.place)},
               {"store", to_json(start.store)},
               {"master", to_json(start.master)},
               {"note", start.note},
               {"stand_ins", Json::array()}};
  for (const Endpoint& endpoint : start.stand_ins) json["stand_ins"].push_back(to_json(endpoint));
  return json;
}

StartOrder start_of(const Json& json) {
  StartOrder start{.place = place_of(json.at("place")),
                   .store = endpoint_of(json.at("store")),
                   .master = endpoint_of(json.at("master")),
                   .note = json.at("note")};
  for (const Json& endpoint : json.at("stand_ins")) {
    start.stand_ins.push_back(endpoint_of(endpoint));
  }
  return start;
}

Json to_json(const StopOrder& stop) {
  Json json = {{"type", "stop"}, {"reason", stop.reason}};
  if (stop.failed) json["failed"] = *stop.failed == Failure::Kind::kHost ? "host" : "rank";
  return json;
}

StopOrder stop_of(const Json& json) {
  StopOrder stop{.reason = json.at("reason")};
  if (json.contains("failed")) {
    stop.failed = json.at("failed") == "host" ? Failure::Kind::kHost : Failure::Kind::kRank;
  }
  return stop;
}

Json to_json(const WaitOrder& wait) { return {{"type", "wait"}, {"reason", wait.reason}}; }

Json to_json(const EndOrder& end) {
  return {{"type", "end"},
          {"exit_code", end.exit_code},
          {"cause", end.cause},
          {"reason", end.reason},
          {"alone", end.alone}};
}

Json to_json(const LookOrder& look) { return {{"type", "look"}, {"round", look.round}}; }

Json to_json(const HangOrder& hang) {
  return {{"type", "hang"},          {"generation", hang.generation},
          {"seconds", hang.seconds}, {"sentence", hang.sentence},
          {"ranks", hang.ranks},     {"witness", hang.witness}};
}

Json to_json(const StragglerOrder& order) {
  return {{"type", "straggler"},
          {"generation", order.generation},
          {"rank", order.rank},
          {"inside", order.inside},
          {"others", order.others}};
}

Json to_json(const FirstFailureOrder& order) {
  return {{"type", "first_failure"}, {"generation", order.generation}};
}

HangOrder hang_of(const Json& json) {
  return {.generation = json.at("generation"),
          .seconds = json.at("seconds"),
          .sentence = json.at("sentence"),
          .ranks = json.at("ranks").get<std::vector<int>>(),
          .witness = json.at("witness")};
}

// What a rank printed or a host is called need not be UTF-8.
template <class Message>
std::string to_text(const Message& message) {
  const Json json = std::visit([](const auto& one) { return to_json(one); }, message);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <class Body>
auto decode(const std::string& text, Body body) {
  try {
    const Json json = Json::parse(text);
    return body(json, json.at("type").template get<std::string>());
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, "a message between agents makes no sense: {}", error.what());
  }
}

}  // namespace

std::string encode(const Report& report) { return to_text(report); }
std::string encode(const Order& order) { return to_text(order); }

Report decode_report(const std::string& text) {
  return decode(text, [](const Json& json, const std::string& type) -> Report {
    if (type == "joining") return joining_of(json);
    if (type == "failure") return failure_of(json);
    if (type == "finished") {
      return Finished{json.at("generation"), json.at("stopped_as_agreed")};
    }
    if (type == "stopped") return stopped_of(json);
    if (type == "leaving") return Leaving{json.at("signal")};
    if (type == "giving_up") {
      return GivingUp{std::chrono::milliseconds(json.at("silence_ms").get<std::int64_t>())};
    }
    if (type == "whereabouts") {
      return Whereabouts{json.at("generation"), json.at("round"), json.at("limit"),
                         json.at("digest"), standstill_of(json.at("standstill"))};
    }
    if (type == "shares") return shares_of(json);
    fail(ErrorCode::kCorrupt, "no agent reports '{}'", type);
  });
}

Order decode_order(const std::string& text) {
  return decode(text, [](const Json& json, const std::string& type) -> Order {
    if (type == "start") return start_of(json);
    if (type == "stop") return stop_of(json);
    if (type == "wait") return WaitOrder{json.at("reason")};
    if (type == "end") {
      return EndOrder{json.at("exit_code"), json.at("cause"), json.at("reason"), json.at("alone")};
    }
    if (type == "look") return LookOrder{json.at("round")};
    if (type == "hang") return hang_of(json);
    if (type == "straggler") {
      return StragglerOrder{json.at("generation"), json.at("rank"), json.at("inside"),
                            json.at("others")};
    }
    if (type == "first_failure") return FirstFailureOrder{json.at("generation")};
    fail(ErrorCode::kCorrupt, "no coordinator orders '{}'", type);
  });
}

}  // namespace paceline::launch
