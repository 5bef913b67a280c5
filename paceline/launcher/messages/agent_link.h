#pragma once

// One connection between an agent and the coordinator of its job: authenticated with the job's
// secret before anything else is parsed, then frames of a u32 length and that many bytes of text
// (agent_messages.h) in both directions. An empty frame is a sign of life. "?N" asks for the other
// end's time, and "!N N N" is the answer (clock_comparison.h), which the link sends by itself. No
// member function waits.
//
// Thread safety: none.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/messages/clock_comparison.h"
#include "paceline/launcher/messages/keep_alive.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

inline constexpr char kAgentContext[] = "agents of a job";

class AgentLink {
 public:
  // The agent's end. Requires: `socket` has been authenticated.
  explicit AgentLink(Fd socket);
  // The coordinator's end. The agent at the other end must first prove that it knows the secret
  // (authenticated()). `secret` must outlive this object.
  AgentLink(Fd socket, const Secret& secret);

  // Reads the bytes that have arrived; returns the messages that they complete. Error(kPeerLost)
  // when the other end has closed the connection, kInvalid when it is not an agent of the job,
  // kCorrupt when it breaks the protocol.
  std::vector<std::string> read();
  // Sends as much as the socket accepts now, and keeps the rest for flush(). Error(kPeerLost).
  void send(const std::string& text);
  void send_sign_of_life() { send(""); }
  // Asks for the other end's time; this is also a sign of life. Error(kPeerLost).
  void compare_clocks();
  void flush();
  bool has_output() const { return !output_.empty(); }

  bool authenticated() const { return handshake_ == nullptr; }
  // The time since the other end was last heard from, over this connection or another one, or since
  // the connection was made.
  std::chrono::nanoseconds silence() const { return silence_.lasted(); }
  // The time since bytes last arrived on this connection. After a network outage, TCP waits about
  // as long as the outage lasted before it retransmits, so this connection may be silent although
  // the other end is alive.
  std::chrono::nanoseconds standstill() const { return standstill_.lasted(); }
  // Call this when the other end has given a sign of life over another connection.
  void heard_elsewhere() { silence_.heard(); }
  int fd() const { return socket_.get(); }
  const ClockComparison& clock() const { return clock_; }
  // Address and port of the other end.
  const std::string& peer() const { return peer_; }

 private:
  bool shake_hands();
  bool receive();
  bool take_clock(const std::string& message);

  Fd socket_;
  std::string peer_;
  std::unique_ptr<ServerHandshake> handshake_;  // null once the handshake is done
  Deadline::Clock::time_point last_heard_ = Deadline::Clock::now();
  Silence silence_, standstill_;
  ClockComparison clock_;
  std::string input_;
  SendQueue output_;
  std::string closed_;  // why nothing more will arrive; empty: open
};

// One question to another agent of the job, over a connection of its own: connects, proves the
// secret, sends one report and receives one order. Does not wait, except to look up a name. A call
// that fails has no answer.
//
// Thread safety: none. `loop` and `secret` must outlive the object.
class AgentCall {
 public:
  // `agent` should be a numeric address: looking up a name may block for as long as the resolver
  // waits.
  AgentCall(EventLoop& loop, const Endpoint& agent, const Secret& secret, Report question,
            std::chrono::nanoseconds patience);
  AgentCall(const AgentCall&) = delete;
  AgentCall& operator=(const AgentCall&) = delete;
  ~AgentCall();

  const Endpoint& agent() const { return agent_; }
  // Whether the call was answered, has failed, or has run out of time.
  bool over() const { return ended_ || patience_.expired(); }
  // Returns the answer once; nullopt if it has not arrived yet or was already returned.
  std::optional<Order> take_answer() { return std::exchange(answer_, std::nullopt); }

 private:
  void go_on();
  void go_on_connecting();
  void shake_hands();
  void read_answer();
  void watch(const Fd& socket, std::uint32_t events);
  void hang_up();

  EventLoop& loop_;
  const Endpoint agent_;
  const Secret& secret_;
  const Report question_;
  const Deadline patience_;
  int watched_ = -1;
  std::optional<ConnectAttempt> attempt_;
  Fd socket_;
  std::optional<ClientHandshake> handshake_;
  std::unique_ptr<AgentLink> link_;
  std::optional<Order> answer_;
  bool ended_ = false;
};

}  // namespace paceline::launcher
