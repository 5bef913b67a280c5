#include "paceline/bench/messages.h"

#include <span>

#include <nlohmann/json.hpp>

#include "paceline/core/check.h"
#include "paceline/core/socket.h"

namespace paceline::bench {
namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kMaxMessage = 1 << 20;

Json parse(const std::string& text, const char* kind) {
  Json message = Json::parse(text, nullptr, false);
  if (!message.is_object() || !message.contains("kind")) {
    fail(ErrorCode::kCorrupt, "expected a {}, received something else", kind);
  }
  if (message["kind"] == "failure") {
    fail(ErrorCode::kAborted, "{}", message.value("text", "no reason was given"));
  }
  if (message["kind"] != kind) {
    fail(ErrorCode::kCorrupt, "expected a {}, received a {}", kind, message["kind"].dump());
  }
  return message;
}

// nlohmann's exceptions for missing or mistyped members, as ours.
template <class Read>
auto read(const std::string& text, const char* kind, const Read& from) {
  const Json message = parse(text, kind);
  try {
    return from(message);
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, "a {} that cannot be read: {}", kind, error.what());
  }
}

}  // namespace

void Conversation::send(const Hello& message, Deadline deadline) {
  send_text(
      Json{{"kind", "hello"}, {"rank", message.rank}, {"world_size", message.world_size}}.dump(),
      deadline);
}

Hello Conversation::receive_hello(Deadline deadline) {
  return read(receive_text(deadline), "hello", [](const Json& message) {
    return Hello{message.at("rank"), message.at("world_size")};
  });
}

void Conversation::send(const Setup& message, Deadline deadline) {
  const Json json{{"kind", "setup"},
                  {"cpus", message.cpus},
                  {"own_core", message.own_core},
                  {"start_line", message.start_line},
                  {"algorithm", message.algorithm}};
  send_text(json.dump(), deadline);
}

Setup Conversation::receive_setup(Deadline deadline) {
  return read(receive_text(deadline), "setup", [](const Json& message) {
    return Setup{message.at("cpus"), message.at("own_core"), message.at("start_line"),
                 message.at("algorithm")};
  });
}

void Conversation::send(const Ready& message, Deadline deadline) {
  const Json json{{"kind", "ready"},
                  {"version", message.version},
                  {"has_symmetric_memory", message.has_symmetric_memory},
                  {"gives_results", message.gives_results}};
  send_text(json.dump(), deadline);
}

Ready Conversation::receive_ready(Deadline deadline) {
  return read(receive_text(deadline), "ready", [](const Json& message) {
    return Ready{message.at("version"), message.at("has_symmetric_memory"),
                 message.at("gives_results")};
  });
}

void Conversation::send(const Turn& turn, Deadline deadline) {
  const Json json{{"kind", "turn"},
                  {"op", static_cast<int>(turn.op.op)},
                  {"coalesced", turn.op.is_coalesced},
                  {"dtype", static_cast<int>(turn.dtype)},
                  {"in_place", turn.placement == Placement::kInPlace},
                  {"symmetric", turn.memory == MemoryKind::kSymmetric},
                  {"count", turn.count},
                  {"fresh", turn.fresh},
                  {"check", turn.check},
                  {"min_calls", turn.min_calls},
                  {"max_calls", turn.max_calls},
                  {"seconds", turn.seconds}};
  send_text(json.dump(), deadline);
}

Turn Conversation::receive_turn(Deadline deadline) {
  return read(receive_text(deadline), "turn", [](const Json& message) {
    Turn turn;
    turn.op = {static_cast<Op>(message.at("op").get<int>()), message.at("coalesced").get<bool>()};
    turn.dtype = static_cast<Dtype>(message.at("dtype").get<int>());
    turn.placement = message.at("in_place") ? Placement::kInPlace : Placement::kOutOfPlace;
    turn.memory = message.at("symmetric") ? MemoryKind::kSymmetric : MemoryKind::kOrdinary;
    turn.count = message.at("count");
    turn.fresh = message.at("fresh");
    turn.check = message.at("check");
    turn.min_calls = message.at("min_calls");
    turn.max_calls = message.at("max_calls");
    turn.seconds = message.at("seconds");
    return turn;
  });
}

void Conversation::send(const TurnResult& result, Deadline deadline) {
  const Json json{{"kind", "result"},
                  {"lacks", result.lacks},
                  {"seconds", result.seconds},
                  {"difference", result.difference},
                  {"idle_seconds", result.idle_seconds},
                  {"idle_cpu_seconds", result.idle_cpu_seconds}};
  send_text(json.dump(), deadline);
}

TurnResult Conversation::receive_result(Deadline deadline) {
  return read(receive_text(deadline), "result", [](const Json& message) {
    return TurnResult{message.at("lacks"), message.at("seconds"), message.at("difference"),
                      message.at("idle_seconds"), message.at("idle_cpu_seconds")};
  });
}

void Conversation::send_failure(const std::string& text, Deadline deadline) {
  send_text(Json{{"kind", "failure"}, {"text", text}}.dump(-1, ' ', false,
                                                           Json::error_handler_t::replace),
            deadline);
}

void Conversation::send_text(const std::string& text, Deadline deadline) {
  check(text.size() <= kMaxMessage, "a message of {} bytes is too long", text.size());
  const auto length = static_cast<std::uint32_t>(text.size());
  send_all(socket_, std::as_bytes(std::span(&length, 1)), deadline);
  send_all(socket_, std::as_bytes(std::span(text)), deadline);
}

std::string Conversation::receive_text(Deadline deadline) {
  std::uint32_t length = 0;
  receive_all(socket_, std::as_writable_bytes(std::span(&length, 1)), deadline);
  if (length > kMaxMessage) fail(ErrorCode::kCorrupt, "received a message of {} bytes", length);
  std::string text(length, '\0');
  receive_all(socket_, std::as_writable_bytes(std::span(text)), deadline);
  return text;
}

}  // namespace paceline::bench
