#pragma once

// A discrete-event simulation that runs the schedules of all ranks in virtual time, on hosts with
// one network interface each. It moves no data, so groups may be far larger than the machine that
// runs the simulation; an observer adds data, for the tests of the algorithms.
//
// The model. A message costs the sender processor time, uses the link, then costs the receiver
// processor time. Between hosts the link is the sending host's interface, the network, which has no
// limit, and the receiving host's interface (the ranks of a host share its interface; first come,
// first served). Inside a host, moving the bytes takes processor time of the sender, then of the
// receiver; each rank moves one message after the other, in or out. Reducing and copying take time
// at a fixed rate. There is no loss, no congestion inside the network, and no competition for
// processors, so a machine with fewer cores than ranks is slower than predicted.
//
// If all hosts do the same (is_alike_on_all_hosts(), algorithm.h), one host is simulated for all: a
// message that it sends to the host d positions after it also stands for the message that it
// receives from the host d positions before it. A group on one host is simulated by one of its
// ranks in the same way.
//
// Cost: about a microsecond of real time per message; memory for all steps of the simulated ranks.

#include <cstdint>
#include <functional>
#include <optional>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/selection/cost_model.h"

namespace paceline {

struct SimulatedCluster {
  Hosts hosts;
  CostModel costs;
};

// Simulating this many steps takes about ten seconds and a gigabyte of memory.
inline constexpr std::size_t kMaxSteps = 5'000'000;

struct SimulationOptions {
  std::size_t element_bytes = 4;
  std::size_t partial_bytes = 4;
  // The element of a rank's output at which its input begins, if the input is a part of the output.
  std::function<std::optional<std::size_t>(int rank)> input_in_output;
  // Simulates one host for all. Requires: equal blocks of ranks (Hosts), and no observer.
  bool hosts_are_alike = false;
  // The most steps of all simulated ranks together; more are refused.
  std::size_t most_steps = kMaxSteps;
  // If set, a send lasts until it has been received, which schedules must tolerate. If not, the
  // network buffers any number of bytes.
  bool is_unbuffered = false;
};

struct SimulationResult {
  double seconds = 0;               // time until the last rank has ended
  std::uint64_t num_messages = 0;   // including messages that are only a header
  std::uint64_t network_bytes = 0;  // between hosts, headers included
};

// Moves data, for tests: its functions are called in an order that can occur in reality. The data
// of a message moves in on_receive(), at the latest possible moment. Requires: is_unbuffered.
class SimulationObserver {
 public:
  virtual ~SimulationObserver() = default;
  // Called when a message begins; `message` is the number of the message.
  virtual void on_send(std::uint64_t message, int from) = 0;
  virtual void on_receive(std::uint64_t message, int from, const Step& send, int to,
                          const Step& receive) = 0;
  virtual void on_copy(int rank, const Step& step) = 0;
  virtual void on_reduce(int rank, const Step& step, const Schedule& schedule) = 0;
  virtual void on_meet(const std::vector<int>& ranks) = 0;
};

// Runs the simulation. Error(kInvalid) names a rank and its step if the schedules never end, or
// the ranks of messages that do not match; kUnsupported for more than most_steps steps.
SimulationResult simulate(const SimulatedCluster& cluster,
                          const std::function<Schedule(int rank)>& build,
                          const SimulationOptions& options = {},
                          SimulationObserver* observer = nullptr);

}  // namespace paceline
