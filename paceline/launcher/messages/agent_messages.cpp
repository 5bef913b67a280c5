#include "paceline/launcher/messages/agent_messages.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"

namespace paceline::launcher {
namespace {

using Json = nlohmann::json;

// --- What each value sends: keys and members. An empty key: the member's own are among them ---

template <class T>
constexpr auto kMembers = std::tuple();

template <>
constexpr auto kMembers<Endpoint> = std::tuple("host", &Endpoint::host, "port", &Endpoint::port);
template <>
constexpr auto kMembers<Offer> = std::tuple("store", &Offer::store, "master", &Offer::master);
template <>
constexpr auto kMembers<RoleCount> =
    std::tuple("name", &RoleCount::name, "count", &RoleCount::count, "serves", &RoleCount::serves);
template <>
constexpr auto kMembers<NodePlace> = std::tuple(
    "generation", &NodePlace::generation, "max_restarts", &NodePlace::max_restarts, "node_rank",
    &NodePlace::node_rank, "num_nodes", &NodePlace::num_nodes, "first_rank", &NodePlace::first_rank,
    "world_size", &NodePlace::world_size, "roles", &NodePlace::roles);
template <>
constexpr auto kMembers<Standstill> =
    std::tuple("seconds", &Standstill::seconds, "steps", &Standstill::steps, "idle",
               &Standstill::idle, "running", &Standstill::running, "stopped", &Standstill::stopped,
               "waiting", &Standstill::waiting, "missing", &Standstill::missing);
template <>
constexpr auto kMembers<Joining> = std::tuple(
    "version", &Joining::version, "run_id", &Joining::run_id, "host", &Joining::host, "num_ranks",
    &Joining::num_ranks, "min_nodes", &Joining::min_nodes, "max_nodes", &Joining::max_nodes,
    "logical_shards", &Joining::logical_shards, "roles", &Joining::roles, "role", &Joining::role,
    "role_serves", &Joining::role_serves, "node_rank", &Joining::node_rank, "stand_in",
    &Joining::stand_in, "offer", &Joining::offer, "next_generation", &Joining::next_generation);
template <>
constexpr auto kMembers<Failure> =
    std::tuple("cause", &Failure::cause, "end", &Failure::end, "exit_code", &Failure::exit_code,
               "signal", &Failure::signal, "reason", &Failure::reason, "on_purpose",
               &Failure::on_purpose, "at_ns", &Failure::at);
template <>
constexpr auto kMembers<RankFailure> =
    std::tuple("generation", &RankFailure::generation, "", &RankFailure::failure);
template <>
constexpr auto kMembers<Finished> = std::tuple("generation", &Finished::generation,
                                               "stopped_as_agreed", &Finished::stopped_as_agreed);
template <>
constexpr auto kMembers<Stopped> =
    std::tuple("generation", &Stopped::generation, "lived_ms", &Stopped::lived, "steps",
               &Stopped::steps, "offer", &Stopped::offer);
template <>
constexpr auto kMembers<Leaving> = std::tuple("signal", &Leaving::signal);
template <>
constexpr auto kMembers<GivingUp> = std::tuple("silence_ms", &GivingUp::silence);
template <>
constexpr auto kMembers<Whereabouts> = std::tuple(
    "generation", &Whereabouts::generation, "round", &Whereabouts::round, "limit",
    &Whereabouts::limit, "digest", &Whereabouts::digest, "standstill", &Whereabouts::standstill);
template <>
constexpr auto kMembers<Shares> =
    std::tuple("generation", &Shares::generation, "ranks", &Shares::ranks);
template <>
constexpr auto kMembers<Alive> = std::tuple("stand_in", &Alive::stand_in);
template <>
constexpr auto kMembers<Looking> =
    std::tuple("version", &Looking::version, "run_id", &Looking::run_id, "num_nodes",
               &Looking::num_nodes, "leader", &Looking::leader, "asked", &Looking::asked);
template <>
constexpr auto kMembers<WorkDone> = std::tuple("generation", &WorkDone::generation);
template <>
constexpr auto kMembers<StartOrder> =
    std::tuple("place", &StartOrder::place, "store", &StartOrder::store, "master",
               &StartOrder::master, "note", &StartOrder::note, "stand_ins", &StartOrder::stand_ins);
template <>
constexpr auto kMembers<StopOrder> =
    std::tuple("reason", &StopOrder::reason, "failed", &StopOrder::failed);
template <>
constexpr auto kMembers<WaitOrder> = std::tuple("reason", &WaitOrder::reason);
template <>
constexpr auto kMembers<EndOrder> =
    std::tuple("exit_code", &EndOrder::exit_code, "cause", &EndOrder::cause, "reason",
               &EndOrder::reason, "alone", &EndOrder::alone);
template <>
constexpr auto kMembers<LookOrder> = std::tuple("round", &LookOrder::round);
template <>
constexpr auto kMembers<HangOrder> =
    std::tuple("generation", &HangOrder::generation, "seconds", &HangOrder::seconds, "sentence",
               &HangOrder::sentence, "ranks", &HangOrder::ranks, "witness", &HangOrder::witness);
template <>
constexpr auto kMembers<StragglerOrder> =
    std::tuple("generation", &StragglerOrder::generation, "rank", &StragglerOrder::rank, "inside",
               &StragglerOrder::inside, "others", &StragglerOrder::others);
template <>
constexpr auto kMembers<FirstFailureOrder> =
    std::tuple("generation", &FirstFailureOrder::generation);

template <>
constexpr auto kMembers<HeardOrder> = std::tuple("stand_in", &HeardOrder::stand_in);
template <>
constexpr auto kMembers<FollowOrder> = std::tuple("leader", &FollowOrder::leader);
template <>
constexpr auto kMembers<WindUpOrder> = std::tuple("generation", &WindUpOrder::generation);

// The types of messages, in the order of the variants.
constexpr std::array kReports = {"joining", "failure",   "finished",    "stopped",
                                 "leaving", "giving_up", "whereabouts", "shares",
                                 "alive",   "looking",   "work_done"};
constexpr std::array kOrders = {"start",     "stop",          "wait",  "end",    "look",   "hang",
                                "straggler", "first_failure", "heard", "follow", "wind_up"};
static_assert(kReports.size() == std::variant_size_v<Report>);
static_assert(kOrders.size() == std::variant_size_v<Order>);

// --- Values and JSON; an optional value that is missing has no key ---

template <class T>
constexpr std::size_t kNumMembers =
    std::tuple_size_v<std::remove_const_t<decltype(kMembers<T>)>> / 2;

template <class T, class Body>
void for_each_member(T& value, const Body& body) {
  using Plain = std::remove_const_t<T>;
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (body(std::get<2 * i>(kMembers<Plain>), value.*std::get<2 * i + 1>(kMembers<Plain>)), ...);
  }(std::make_index_sequence<kNumMembers<Plain>>());
}

struct Codec {
  template <class T>
  static Json written(const T& value) {
    if constexpr (kNumMembers < T >> 0) {
      Json json = Json::object();
      for_each_member(value,
                      [&](const char* key, const auto& member) { write(json, key, member); });
      return json;
    } else {
      return value;
    }
  }
  template <class Rep, class Period>
  static Json written(const std::chrono::duration<Rep, Period>& value) {
    return value.count();
  }
  static Json written(Failure::Kind kind) { return kind == Failure::Kind::kHost ? "host" : "rank"; }
  static Json written(const RankShare& one) {
    return Json::array({one.rank, one.inside, one.num_operations});
  }
  template <class T>
  static Json written(const std::vector<T>& values) {
    Json json = Json::array();
    for (const T& value : values) json.push_back(written(value));
    return json;
  }
  template <class T>
  static void write(Json& json, const char* key, const T& value) {
    *key == '\0' ? json.update(written(value)) : void(json[key] = written(value));
  }
  template <class T>
  static void write(Json& json, const char* key, const std::optional<T>& value) {
    if (value) write(json, key, *value);
  }

  template <class T>
  static void read(const Json& json, T& value) {
    if constexpr (kNumMembers < T >> 0) {
      for_each_member(value, [&](const char* key, auto& member) { read(json, key, member); });
    } else {
      json.get_to(value);
    }
  }
  template <class Rep, class Period>
  static void read(const Json& json, std::chrono::duration<Rep, Period>& value) {
    value = std::chrono::duration<Rep, Period>(json.get<Rep>());
  }
  static void read(const Json& json, Failure::Kind& kind) {
    kind = json == "host" ? Failure::Kind::kHost : Failure::Kind::kRank;
  }
  static void read(const Json& json, RankShare& one) { one = {json.at(0), json.at(1), json.at(2)}; }
  template <class T>
  static void read(const Json& json, std::vector<T>& values) {
    for (const Json& one : json) read(one, values.emplace_back());
  }
  template <class T>
  static void read(const Json& json, const char* key, T& value) {
    read(*key == '\0' ? json : json.at(key), value);
  }
  template <class T>
  static void read(const Json& json, const char* key, std::optional<T>& value) {
    if (json.contains(key)) read(json.at(key), value.emplace());
  }
};

// What a rank printed or a host is called need not be UTF-8.
template <class Message, class Types>
std::string to_text(const Message& message, const Types& types) {
  Json json = std::visit([](const auto& one) { return Codec::written(one); }, message);
  json["type"] = types[message.index()];
  return json_text(json);
}

template <class Message, std::size_t number = 0>
Message message_in(const Json& json, std::size_t wanted) {
  if constexpr (number + 1 < std::variant_size_v<Message>) {
    if (number != wanted) return message_in<Message, number + 1>(json, wanted);
  }
  std::variant_alternative_t<number, Message> message;
  Codec::read(json, message);
  return message;
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
    fail(ErrorCode::kCorrupt, "a message between agents makes no sense: {}", error.what());
  }
}

}  // namespace

std::string encode(const Report& report) { return to_text(report, kReports); }
std::string encode(const Order& order) { return to_text(order, kOrders); }

Report decode_report(const std::string& text) {
  return decode<Report>(text, kReports, "no agent reports");
}
Order decode_order(const std::string& text) {
  return decode<Order>(text, kOrders, "no coordinator orders");
}

}  // namespace paceline::launcher
