#include "apps/bench/messages.h"

#include <span>

#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline::bench {

namespace {

constexpr int kNameBytes = 16;

bool is_mine(const Fd& socket) {
  const auto peer = peer_credentials(socket.get());
  return peer && peer->uid == geteuid();
}

}  // namespace

PrivateListener listen_private() {
  std::string name = fmt::format("paceline-bench-{}", random_hex(kNameBytes));
  Fd socket = listen_unix(name);
  return {std::move(name), std::move(socket)};
}

Fd connect_private(const std::string& name, Deadline deadline) {
  Fd socket = connect_unix(name, deadline);
  check(is_mine(socket), "{} belongs to another user", name);
  return socket;
}

Fd accept_private(const Fd& listener, Deadline deadline) {
  for (;;) {
    Fd socket = accept_connection(listener, deadline);
    if (!socket || is_mine(socket)) return socket;
  }
}

namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kMaxMessage = 1 << 20;

Json parse(const std::string& text, const char* kind) {
  Json message = parse_json_or_discard(text);
  if (!message.is_object() || !message.contains("kind")) {
    fail(ErrorCode::kCorrupt, "expected a {}, received something else", kind);
  }
  if (message["kind"] == "failure") {
    fail(ErrorCode::kAborted, "{}", message.value("text", "no reason was given"));
  }
  if (message["kind"] != kind) {
    fail(ErrorCode::kCorrupt, "expected a {}, received a {}", kind, json_text(message["kind"]));
  }
  return message;
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Operation, op, is_coalesced)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hello, rank, world_size)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Setup, cpus, own_core, start_line, option)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Ready, version, has_symmetric_memory, gives_results)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Turn, op, dtype, placement, memory, count, fresh, check,
                                   min_calls, max_calls, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TurnResult, lacks, seconds, difference, idle_seconds,
                                   idle_cpu_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CallTurn, form, width, bytes, reply_bytes, slow_every, slow_ms,
                                   seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CallTurnResult, lacks, p50_us, p99_us, per_second, idle_seconds,
                                   idle_cpu_seconds)

template <class Message>
void Conversation::send(const Message& message, Deadline deadline) {
  Json json = message;
  json["kind"] = Message::kKind;
  send_text(json_text(json), deadline);
}

// Turns nlohmann's exceptions for missing or mistyped members into Error(kCorrupt).
template <class Message>
Message Conversation::receive(Deadline deadline) {
  const Json json = parse(receive_text(deadline), Message::kKind);
  try {
    return json.get<Message>();
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, "a {} that cannot be read: {}", Message::kKind, error.what());
  }
}

template void Conversation::send(const Hello&, Deadline);
template Hello Conversation::receive(Deadline);
template void Conversation::send(const Setup&, Deadline);
template Setup Conversation::receive(Deadline);
template void Conversation::send(const Ready&, Deadline);
template Ready Conversation::receive(Deadline);
template void Conversation::send(const Turn&, Deadline);
template Turn Conversation::receive(Deadline);
template void Conversation::send(const TurnResult&, Deadline);
template TurnResult Conversation::receive(Deadline);
template void Conversation::send(const CallTurn&, Deadline);
template CallTurn Conversation::receive(Deadline);
template void Conversation::send(const CallTurnResult&, Deadline);
template CallTurnResult Conversation::receive(Deadline);

void Conversation::send_failure(const std::string& text, Deadline deadline) {
  send_text(json_text(Json{{"kind", "failure"}, {"text", text}}), deadline);
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
