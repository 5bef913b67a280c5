// The simulator: its messages, ranks and channels, and the events that it carries out in the order
// of virtual time.

#include "paceline/engine/collectives/selection/simulator.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <queue>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/algorithms/scoreboard.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/transport/wire.h"

namespace paceline::simulation {

inline constexpr double kNever = -1;

struct Message {
  int from = 0;              // the simulated rank that sends it
  int to = 0;                // the simulated rank that receives it
  int source = 0;            // the rank that the receiver's step names as the sender
  std::uint32_t number = 0;  // its number among the sender's messages
  const Step* send = nullptr;
  const Step* receive = nullptr;  // null until the receive is posted
  double arrival = kNever;
  bool is_inside = false;  // whether the message stays inside a host
  bool has_started = false;
  bool is_received = false;
};

struct Rank {
  Schedule schedule;
  std::size_t next = 0;  // index of the next step
  double clock = 0;
  double socket_free_at = 0;   // when its processor has moved all bytes that go through sockets
  double receive_free_at = 0;  // when it has handled all messages that have arrived
  bool is_busy = false;        // an event will resume it
  bool meets = false;
  std::size_t outstanding = 0;
  std::size_t sends_of_others = 0;  // sends under way that read other ranks' memory
  std::uint32_t num_sends = 0;
  std::unordered_map<int, std::size_t> expected;  // receives under way, by peer
  RangesInUse in_use;
};

struct Event {
  enum class Kind : std::uint8_t { kResume, kStart, kReach, kAccept, kLeave, kArrive };
  double time;
  // Orders events of equal time: by kind, then by the message's number among its sender's messages,
  // then by the sender's position in its host, so that the order is the same on every host; then by
  // `order`, the order in which they were made.
  std::uint64_t turn;
  std::uint64_t order;
  Kind kind;
  std::uint64_t subject;  // a rank or a message
  bool operator>(const Event& other) const {
    return std::tie(time, turn, order) > std::tie(other.time, other.turn, other.order);
  }
};

// The messages from one rank to another that wait for a receive, or the receives that were posted
// and wait for a message.
class Backlog {
 public:
  bool has_sends() const { return first_ < waiting_.size() && are_sends_; }
  bool has_receives() const { return first_ < waiting_.size() && !are_sends_; }
  // Requires: no entry of the other kind is waiting.
  void push_send(std::uint64_t message) { push(message, true); }
  void push_receive(const Step& step) { push(reinterpret_cast<std::uintptr_t>(&step), false); }
  std::uint64_t pop_send() { return waiting_[first_++]; }
  const Step* pop_receive() { return reinterpret_cast<const Step*>(waiting_[first_++]); }

 private:
  void push(std::uint64_t one, bool is_send) {
    if (first_ == waiting_.size()) {
      waiting_.clear();
      first_ = 0;
      are_sends_ = is_send;
    }
    waiting_.push_back(one);
  }

  std::vector<std::uint64_t> waiting_;  // messages, or addresses of steps
  std::size_t first_ = 0;
  bool are_sends_ = false;
};

}  // namespace paceline::simulation

namespace paceline {

namespace {

using simulation::Backlog;
using simulation::Event;
using simulation::kNever;
using simulation::Message;
using simulation::Rank;

class Simulation {
 public:
  Simulation(const SimulatedCluster& cluster, const SimulationOptions& options,
             SimulationObserver* observer)
      : cluster_(cluster),
        costs_(cluster.costs),
        options_(options),
        observer_(observer),
        ranks_(num_simulated(cluster.hosts, options)),
        egress_free_(cluster.hosts.size()),
        ingress_free_(cluster.hosts.size()),
        met_(cluster.hosts.size()) {}

  SimulationResult run(const std::function<Schedule(int)>& build) {
    require_few_steps(build);
    std::size_t steps = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].schedule = build(static_cast<int>(rank));
      steps += ranks_[rank].schedule.steps.size();
      if (steps > options_.most_steps) refuse(steps * ranks_.size() / (rank + 1));
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) resume(0, static_cast<int>(rank));
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      handle(event);
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) require_end(static_cast<int>(rank));
    const std::uint64_t times = cluster_.hosts.host_of.size() / ranks_.size();
    result_.num_messages *= times;
    result_.network_bytes *= times;
    return result_;
  }

 private:
  using Kind = Step::Kind;

  // The number of simulated ranks: all ranks, those of one host, or one rank if there is one host.
  static std::size_t num_simulated(const Hosts& hosts, const SimulationOptions& options) {
    if (!options.hosts_are_alike) return hosts.host_of.size();
    check(hosts.are_equal_blocks(), "simulating: the hosts are not alike");
    return hosts.size() == 1 ? 1 : hosts.members.front().size();
  }

  // Checks the number of steps on the first and the last rank, before much memory is used: a root
  // may have more steps than the others, but cannot be both of these ranks.
  void require_few_steps(const std::function<Schedule(int)>& build) const {
    const int last = static_cast<int>(ranks_.size()) - 1;
    const std::size_t steps = std::min(build(0).steps.size(), build(last).steps.size());
    if (steps * ranks_.size() > options_.most_steps) refuse(steps * ranks_.size());
  }

  [[noreturn]] void refuse(std::size_t steps) const {
    fail(ErrorCode::kUnsupported,
         "not simulated: {} take about {:.1f} million steps by this algorithm, and {:.1f} million "
         "is the limit; choose another algorithm or fewer ranks",
         counted(cluster_.hosts.world_size(), "rank"), static_cast<double>(steps) * 1e-6,
         static_cast<double>(options_.most_steps) * 1e-6);
  }

  void resume(double time, int rank) {
    const auto subject = static_cast<std::uint64_t>(rank);
    push(time, Event::Kind::kResume, 0, rank, subject);
  }
  void push(double time, Event::Kind kind, std::uint64_t id) {
    const Message& message = messages_[id];
    push(time, kind, message.number, message.from, id);
  }
  void push(double time, Event::Kind kind, std::uint64_t number, int rank, std::uint64_t subject) {
    const std::uint64_t position = cluster_.hosts.local_index(rank);
    const std::uint64_t turn = static_cast<std::uint64_t>(kind) << 60 | number << 20 | position;
    events_.push({time, turn, next_order_++, kind, subject});
  }

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  std::size_t host_of(int rank) const {
    return static_cast<std::size_t>(cluster_.hosts.host_of[static_cast<std::size_t>(rank)]);
  }
  const LinkCost& link(const Message& message) const {
    return message.is_inside ? costs_.sockets : costs_.network;
  }

  void handle(const Event& event) {
    result_.seconds = std::max(result_.seconds, event.time);
    switch (event.kind) {
      case Event::Kind::kResume: {
        Rank& rank = ranks_[event.subject];
        rank.is_busy = false;
        rank.clock = std::max(rank.clock, event.time);
        advance(static_cast<int>(event.subject));
        return;
      }
      case Event::Kind::kStart:
        start(event.subject, event.time);
        return;
      case Event::Kind::kReach:
        reach(event.subject, event.time);
        return;
      case Event::Kind::kAccept:
        accept(event.subject, event.time);
        return;
      case Event::Kind::kLeave:
        leave(messages_[event.subject]);
        wake(messages_[event.subject].from, event.time);
        return;
      case Event::Kind::kArrive:
        arrive(event.subject, event.time);
        return;
    }
  }

  // Called when the message has left; frees the memory that the sender's step reads.
  void leave(const Message& message) {
    Rank& sender = at(message.from);
    const Step& step = *message.send;
    --sender.outstanding;
    if (step.owner >= 0) {
      --sender.sends_of_others;
    } else {
      sender.in_use.end(bytes_of(message.from, step.from, step.count), false);
    }
  }

  void wake(int number, double time) {
    Rank& rank = at(number);
    if (rank.is_busy || rank.meets) return;
    rank.clock = std::max(rank.clock, time);
    advance(number);
  }

  // Carries out steps until one of them must wait.
  void advance(int number) {
    Rank& rank = at(number);
    while (rank.next < rank.schedule.steps.size()) {
      const Step& step = rank.schedule.steps[rank.next];
      if (!is_ready(number, rank, step)) return;
      ++rank.next;
      if (step.kind == Kind::kSend) {
        send(number, rank, step);
      } else if (step.kind == Kind::kReceive) {
        receive(number, rank, step);
      } else if (step.kind == Kind::kReduce || step.kind == Kind::kCopy) {
        compute(number, rank, step);
        return;
      } else if (step.kind == Kind::kMeet) {
        meet(number, rank);
        return;
      }
    }
  }

  bool is_ready(int number, Rank& rank, const Step& step) {
    const auto own = [&](const Place& place) { return bytes_of(number, place, step.count); };
    switch (step.kind) {
      case Kind::kSend:
        return step.owner >= 0 || rank.in_use.may_read(own(step.from));
      case Kind::kReceive:
        return rank.in_use.may_write(own(step.to));
      case Kind::kAwait:
        return rank.expected[step.peer] == 0;
      case Kind::kCopy:
        if (stays(number, step)) return true;
        return (step.owner >= 0 || rank.in_use.may_read(own(step.from))) &&
               rank.in_use.may_write(own(step.to));
      case Kind::kReduce:
        for (std::size_t i = 0; i < step.num_operands; ++i) {
          const Operand& operand = rank.schedule.operands[step.first_operand + i];
          if (operand.owner < 0 && !rank.in_use.may_read(own(operand.place))) return false;
        }
        return rank.in_use.may_write(own(step.to));
      case Kind::kMeet:
        return rank.in_use.empty() && rank.sends_of_others == 0;
    }
    return true;
  }

  std::size_t element(Space space) const {
    return space == Space::kPartial ? options_.partial_bytes : options_.element_bytes;
  }

  // Invents addresses: the spaces lie far apart, except for an input that lies inside the output.
  Scoreboard::Bytes bytes_of(int rank, const Place& place, std::size_t count) const {
    constexpr std::uintptr_t kApart = std::uintptr_t{1} << 48;
    auto space = static_cast<std::uintptr_t>(place.space);
    std::size_t offset = place.offset;
    if (place.space == Space::kInput && options_.input_in_output) {
      if (const auto begin = options_.input_in_output(rank)) {
        space = static_cast<std::uintptr_t>(Space::kOutput);
        offset += *begin;
      }
    }
    const std::uintptr_t begin = space * kApart + offset * element(place.space);
    return {begin, begin + count * element(place.space)};
  }

  // True for a copy of a range onto itself.
  bool stays(int rank, const Step& step) const {
    return step.owner < 0 && bytes_of(rank, step.from, 1).begin == bytes_of(rank, step.to, 1).begin;
  }

  void send(int number, Rank& rank, const Step& step) {
    const std::uint64_t id = messages_.size();
    // `source` is counted from the simulated receiver: if another rank stands for the receiver, the
    // sender's number shifts by the same distance.
    const int world = cluster_.hosts.world_size();
    const int to = step.peer % static_cast<int>(ranks_.size());
    const int source = (number - step.peer + to + world) % world;
    messages_.push_back({.from = number,
                         .to = to,
                         .source = source,
                         .number = rank.num_sends++,
                         .send = &step,
                         .is_inside = host_of(number) == host_of(step.peer)});
    ++rank.outstanding;
    if (step.owner < 0) {
      rank.in_use.begin(bytes_of(number, step.from, step.count), false);
    } else {
      ++rank.sends_of_others;
    }
    rank.clock += link(messages_[id]).message_s;
    if (observer_ != nullptr) observer_->on_send(id, number);
    Backlog& channel = channels_[key(source, to)];
    if (channel.has_receives()) {
      match(id, channel.pop_receive(), rank.clock);
    } else {
      channel.push_send(id);
    }
    if (!options_.is_unbuffered) push(rank.clock, Event::Kind::kStart, id);
  }

  void receive(int number, Rank& rank, const Step& step) {
    ++rank.outstanding;
    ++rank.expected[step.peer];
    rank.in_use.begin(bytes_of(number, step.to, step.count), true);
    Backlog& channel = channels_[key(step.peer, number)];
    if (channel.has_sends()) {
      match(channel.pop_send(), &step, rank.clock);
    } else {
      channel.push_receive(step);
    }
  }

  static std::uint64_t key(int from, int to) {
    return static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to);
  }

  void match(std::uint64_t id, const Step* receive, double time) {
    Message& message = messages_[id];
    message.receive = receive;
    require_match(message);
    if (options_.is_unbuffered) {
      push(time, Event::Kind::kStart, id);
    } else if (message.arrival != kNever) {
      push(std::max(time, message.arrival), Event::Kind::kArrive, id);
    }
  }

  void require_match(const Message& message) const {
    const bool is_partial = message.send->from.space == Space::kPartial;
    check(message.send->count == message.receive->count &&
              is_partial == (message.receive->to.space == Space::kPartial),
          "simulating: rank {} sends {} elements, rank {} expects {} or another kind",
          message.source, message.send->count, message.to, message.receive->count);
  }

  double length_of(const Message& message) const {
    const std::size_t payload = message.send->count * element(message.send->from.space);
    return static_cast<double>(sizeof(MessageHeader) + payload);
  }

  // The message leaves through the sending host's interface, or through the sender's socket.
  void start(std::uint64_t id, double time) {
    Message& message = messages_[id];
    if (message.has_started) return;
    message.has_started = true;
    ++result_.num_messages;
    const LinkCost& cost = link(message);
    double& free =
        message.is_inside ? at(message.from).socket_free_at : egress_free_[host_of(message.from)];
    const double begin = std::max(time, free);
    free = begin + length_of(message) / cost.bytes_per_s;
    if (!message.is_inside) {
      result_.network_bytes += static_cast<std::uint64_t>(length_of(message));
    }
    push(begin + cost.latency_s, Event::Kind::kReach, id);
    if (!options_.is_unbuffered) push(free, Event::Kind::kLeave, id);
  }

  // The message's first byte reaches the receiving host's interface, or the receiver's socket.
  void reach(std::uint64_t id, double time) {
    const Message& message = messages_[id];
    double& free =
        message.is_inside ? at(message.to).socket_free_at : ingress_free_[host_of(message.to)];
    free = std::max(time, free) + length_of(message) / link(message).bytes_per_s;
    push(free, Event::Kind::kAccept, id);
  }

  // The whole message has arrived, and costs its receiver time.
  void accept(std::uint64_t id, double time) {
    Message& message = messages_[id];
    double& free = at(message.to).receive_free_at;
    free = std::max(time, free) + link(message).message_s;
    message.arrival = free;
    if (message.receive != nullptr) push(free, Event::Kind::kArrive, id);
  }

  void arrive(std::uint64_t id, double time) {
    Message& message = messages_[id];
    if (message.is_received) return;
    message.is_received = true;
    if (observer_ != nullptr) {
      observer_->on_receive(id, message.from, *message.send, message.to, *message.receive);
    }
    Rank& receiver = at(message.to);
    --receiver.outstanding;
    --receiver.expected[message.source];
    const Step& step = *message.receive;
    receiver.in_use.end(bytes_of(message.to, step.to, step.count), true);
    const int from = message.from;
    const int to = message.to;
    if (options_.is_unbuffered) {
      leave(message);
      wake(from, time);
    }
    wake(to, time);
  }

  void compute(int number, Rank& rank, const Step& step) {
    double bytes = 0;
    if (step.kind == Kind::kCopy) {
      if (!stays(number, step)) {
        bytes = static_cast<double>(step.count * element(step.to.space));
      }
      rank.clock += bytes / costs_.copy_bytes_per_s;
      if (observer_ != nullptr) observer_->on_copy(number, step);
    } else {
      for (std::size_t i = 0; i < step.num_operands; ++i) {
        const Operand& operand = rank.schedule.operands[step.first_operand + i];
        bytes += static_cast<double>(step.count * element(operand.place.space));
      }
      rank.clock += bytes / costs_.reduce_bytes_per_s;
      if (observer_ != nullptr) observer_->on_reduce(number, step, rank.schedule);
    }
    rank.is_busy = true;
    resume(rank.clock, number);
  }

  void meet(int number, Rank& rank) {
    const std::size_t host = host_of(number);
    const auto& everybody = cluster_.hosts.members[host];
    const auto members =
        // Only the simulated members meet.
        std::span(everybody).first(std::min(everybody.size(), ranks_.size()));
    rank.meets = true;
    if (++met_[host] < members.size()) return;
    met_[host] = 0;
    double latest = 0;
    for (const int member : members) latest = std::max(latest, at(member).clock);
    if (observer_ != nullptr) observer_->on_meet(everybody);
    for (const int member : members) {
      at(member).meets = false;
      at(member).is_busy = true;
      resume(latest + costs_.meet_s, member);
    }
  }

  void require_end(int number) {
    const Rank& rank = at(number);
    check(rank.next == rank.schedule.steps.size() && rank.outstanding == 0,
          "simulating: rank {} waits forever at step {} of {}, with {} messages under way", number,
          rank.next, rank.schedule.steps.size(), rank.outstanding);
    result_.seconds = std::max(result_.seconds, rank.clock);
  }

  const SimulatedCluster& cluster_;
  const CostModel& costs_;
  const SimulationOptions& options_;
  SimulationObserver* const observer_;
  std::vector<Rank> ranks_;
  std::vector<double> egress_free_;
  std::vector<double> ingress_free_;
  std::vector<std::size_t> met_;
  std::deque<Message> messages_;
  std::unordered_map<std::uint64_t, Backlog> channels_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t next_order_ = 0;
  SimulationResult result_;
};

}  // namespace

SimulationResult simulate(const SimulatedCluster& cluster,
                          const std::function<Schedule(int)>& build,
                          const SimulationOptions& options, SimulationObserver* observer) {
  check(observer == nullptr || (options.is_unbuffered && !options.hosts_are_alike),
        "simulating: an observer requires is_unbuffered and does not allow hosts_are_alike");
  return Simulation(cluster, options, observer).run(build);
}

}  // namespace paceline
