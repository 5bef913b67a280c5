#include "paceline/launcher/messages/agent_messages.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/launcher/messages/json_values.h"

namespace paceline::launcher {

// Each macro lists the members of a value that are sent; their names are the keys.

// These two functions replace the library's macro for enums, which keeps a static object with a
// destructor.
void to_json(nlohmann::json& to, Failure::Kind from) {
  to = from == Failure::Kind::kHost ? "host" : "rank";
}
void from_json(const nlohmann::json& from, Failure::Kind& to) {
  to = from == "host" ? Failure::Kind::kHost : Failure::Kind::kRank;
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Failure, kind, cause, end, exit_code, signal, reason, on_purpose,
                                   at)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Offer, store, master)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoleCount, name, count, serves)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RestartBudget, max_restarts, window, after_damage, num_restarts,
                                   ages, last_end, num_alike, num_young)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobTerms, version, run_id, num_nodes, min_nodes, logical_shards,
                                   roles, restarts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodePlace, generation, node_rank, num_nodes, first_rank,
                                   world_size, roles, restarts)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Joining, terms, host, num_ranks, role, role_serves, node_rank,
                                   stand_in, offer, next_generation)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFailure, generation, failure)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finished, generation, stopped_as_agreed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorkDone, generation)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Stopped, generation, lived, steps, offer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Leaving, signal)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GivingUp, silence)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Alive, stand_in)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Looking, version, run_id, num_nodes, leader, asked)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Standstill, seconds, steps, idle, running, stopped, waiting,
                                   missing)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Whereabouts, generation, round, limit, digest, standstill)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankShare, rank, inside, num_operations)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Shares, generation, ranks)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StartOrder, place, store, master, note, stand_ins)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StopOrder, reason, failed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WaitOrder, reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EndOrder, exit_code, cause, reason, alone)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LookOrder, round)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HangOrder, generation, seconds, sentence, ranks, witness)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StragglerOrder, generation, rank, inside, others)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FirstFailureOrder, generation)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HeardOrder, stand_in)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FollowOrder, leader)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WindUpOrder, generation)

namespace {

using Json = nlohmann::json;

// The types of messages, in the order of the variants.
constexpr std::array kReports = {"joining", "failure",   "finished",    "stopped",
                                 "leaving", "giving_up", "whereabouts", "shares",
                                 "alive",   "looking",   "work_done"};
constexpr std::array kOrders = {"start",     "stop",          "wait",  "end",    "look",   "hang",
                                "straggler", "first_failure", "heard", "follow", "wind_up"};
static_assert(kReports.size() == std::variant_size_v<Report>);
static_assert(kOrders.size() == std::variant_size_v<Order>);

// The output of ranks and the names of hosts may not be valid UTF-8; json_text() repairs them.
template <class Message, class Types>
std::string to_text(const Message& message, const Types& types) {
  Json json = std::visit([](const auto& one) { return Json(one); }, message);
  json["type"] = types[message.index()];
  return json_text(json);
}

template <class Message, std::size_t number = 0>
Message message_in(const Json& json, std::size_t wanted) {
  if constexpr (number + 1 < std::variant_size_v<Message>) {
    if (number != wanted) return message_in<Message, number + 1>(json, wanted);
  }
  return json.get<std::variant_alternative_t<number, Message>>();
}

template <class Message, class Types>
Message decode(const std::string& text, const Types& types, const char* unknown) {
  try {
    const Json json = parse_json(text);
    const auto type = json.at("type").template get<std::string>();
    const auto found = std::find(types.begin(), types.end(), type);
    if (found != types.end()) {
      return message_in<Message>(json, static_cast<std::size_t>(found - types.begin()));
    }
    fail(ErrorCode::kCorrupt, "{} '{}'", unknown, type);
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, "cannot read a message between agents: {}", error.what());
  }
}

}  // namespace

std::string encode(const Report& report) { return to_text(report, kReports); }
std::string encode(const Order& order) { return to_text(order, kOrders); }

Report decode_report(const std::string& text) {
  return decode<Report>(text, kReports, "unknown report");
}
Order decode_order(const std::string& text) {
  return decode<Order>(text, kOrders, "unknown order");
}

}  // namespace paceline::launcher
