#pragma once

// One connection between an agent and the coordinator of its job: authenticated with the job's
// secret before anything else is parsed, then frames of a u32 length and that many bytes of text
// (agent_messages.h) in both directions. An empty frame is a sign of life. "?N" asks for the other
// end's time and "!N N N" is its answer (clock_comparison.h); the link gives it by itself. Nothing
// here waits.
//
// Thread safety: none.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/handshake.h"
#include "paceline/engine/core/secret.h"
#include "paceline/engine/core/send_queue.h"
#include "paceline/launcher/messages/clock_comparison.h"
#include "paceline/launcher/messages/silence.h"

namespace paceline::launcher {

inline constexpr char kAgentContext[] = "agents of a job";

class AgentLink {
 public:
  // The agent's end: `socket` has been authenticated.
  explicit AgentLink(Fd socket);
  // The coordinator's end: a stranger until it has proved that it knows the secret, which must
  // outlive this.
  AgentLink(Fd socket, const Secret& secret);

  // Takes what has arrived; returns the complete messages among it. Error(kPeerLost) when the other
  // end is gone, kInvalid when it is none of the job's, kCorrupt when it breaks the protocol.
  std::vector<std::string> read();
  // Sends now what the socket takes and keeps the rest. Error(kPeerLost).
  void send(const std::string& text);
  void send_sign_of_life() { send(""); }
  // A sign of life that asks for the time as well. Error(kPeerLost).
  void compare_clocks();
  void flush();
  bool has_output() const { return !output_.empty(); }

  bool authenticated() const { return handshake_ == nullptr; }
  // Since the other end was heard last, here or elsewhere; at first, since the connection was made.
  std::chrono::nanoseconds silence() const { return silence_.lasted(); }
  // Since bytes came last on this connection. After a gap of the network TCP sends again only when
  // as much time has passed once more, so a connection may be silent although the other end is not.
  std::chrono::nanoseconds standstill() const { return standstill_.lasted(); }
  // The other end gave a sign of life over another connection.
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
  std::unique_ptr<ServerHandshake> handshake_;  // until it is done
  Deadline::Clock::time_point last_heard_ = Deadline::Clock::now();
  Silence silence_, standstill_;
  ClockComparison clock_;
  std::string input_;
  SendQueue output_;
  std::string closed_;  // why nothing more comes
};

}  // namespace paceline::launcher
