#pragma once

// A wire of sockets that uses UCX for the data and point-to-point channels to some ranks.
//
// A rank that ends waits for up to kLingerLimit until those ranks have left as well or have died,
// because bytes that a peer has not received yet are lost with the UCX connection.

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/transport/socket_wire.h"
#include "paceline/engine/transport/ucx/ucx.h"
#include "paceline/engine/transport/ucx/worker.h"

namespace paceline::ucx {

inline constexpr std::chrono::seconds kLingerLimit{1};

class UcxWire : public Wire {
 public:
  // Requires: `sockets` connects all ranks. If the constructor succeeds, the caller hands them over
  // by own().
  UcxWire(const Api& api, SocketWire& sockets, const std::vector<int>& remote,
          const DescribeRank& describe, Deadline deadline);
  void own(std::unique_ptr<SocketWire> sockets) { owned_ = std::move(sockets); }
  ~UcxWire() override;
  UcxWire(const UcxWire&) = delete;
  UcxWire& operator=(const UcxWire&) = delete;

  const char* name() const override { return "ucx"; }
  bool is_connected(int peer) const override { return sockets_->is_connected(peer); }
  ssize_t send(int peer, Channel channel, std::span<const std::byte> head,
               std::span<const std::byte> rest) override;
  ssize_t receive(int peer, Channel channel, std::span<std::byte> into) override;
  ssize_t peek(int peer, Channel channel, std::span<std::byte> into) override;
  void wait(std::span<Interest> interests, std::chrono::milliseconds limit) override;
  void wait_or_wake(std::span<Interest> interests,
                    std::optional<std::chrono::milliseconds> limit) override;
  void wake() override { sockets_->wake(); }
  void cancel(Channel channel) override;
  int socket(int peer, Channel channel) const override;

 private:
  // The greetings that a rank and a peer exchange before the group has formed, on the data and the
  // point-to-point channel.
  struct Greeting {
    int peer;
    bool has_sent[2] = {}, has_received[2] = {};
    bool has_said_done = false, has_heard_done = false;
  };

  // The worker of a channel; null if the channel is a socket.
  Worker* worker(int peer, Channel channel) const;
  void introduce(int peer, Deadline deadline);
  void meet(int peer, Deadline deadline);
  void greet_all(Deadline deadline);
  void greet(Greeting& greeting, Worker& worker, int channel);
  bool tell_and_hear(Greeting& greeting, Deadline deadline);
  void write_all(int peer, std::span<const std::byte> bytes, Deadline deadline);
  void read_all(int peer, std::span<std::byte> bytes, Deadline deadline);
  void wait_for(std::span<Interest> interests, std::optional<std::chrono::milliseconds> limit,
                bool wakeable);
  void linger();
  [[noreturn]] void fail_of_end(int peer) const;

  const OwnerProcess owner_;
  SocketWire* const sockets_;
  std::unique_ptr<SocketWire> owned_;
  const std::vector<int> remote_;
  const DescribeRank describe_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Worker> data_, point_to_point_;
};

}  // namespace paceline::ucx
