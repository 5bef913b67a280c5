#pragma once

// The wire of a rank whose peers are all threads of its process: pipes in memory. A peer that goes
// without a goodbye is at its end for the others, as a dead process is.

#include <memory>

#include "paceline/engine/transport/loopback/room.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

class LoopbackWire : public Wire {
 public:
  // Enters `room` as `rank`, and leaves it at the end.
  LoopbackWire(std::shared_ptr<Room> room, int rank);
  ~LoopbackWire() override;
  LoopbackWire(const LoopbackWire&) = delete;
  LoopbackWire& operator=(const LoopbackWire&) = delete;

  const char* name() const override { return "loopback"; }
  bool is_connected(int peer) const override { return room_->has_entered(peer); }
  ssize_t send(int peer, Channel channel, std::span<const std::byte> head,
               std::span<const std::byte> rest) override;
  ssize_t receive(int peer, Channel channel, std::span<std::byte> into) override;
  ssize_t peek(int peer, Channel channel, std::span<std::byte> into) override;
  void wait(std::span<Interest> interests, std::chrono::milliseconds limit) override;
  void wait_or_wake(std::span<Interest> interests,
                    std::optional<std::chrono::milliseconds> limit) override;
  void wake() override;
  bool may_have_news() override;
  int socket(int, Channel) const override { return -1; }

 private:
  bool is_ready(const Interest& interest) const;
  void sleep(Bell& bell, std::span<Interest> interests, std::chrono::nanoseconds limit,
             std::uint32_t seen) const;

  const std::shared_ptr<Room> room_;
  const int rank_;
  std::uint32_t news_seen_ = 0;
  std::uint32_t woken_at_ = 0;  // the count of the bell of point-to-point at its last wait's end
};

}  // namespace paceline
