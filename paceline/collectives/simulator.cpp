#include "paceline/collectives/simulator.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "paceline/collectives/scoreboard.h"
#include "paceline/core/check.h"
#include "paceline/transport/message.h"

namespace paceline {
namespace {

constexpr std::size_t kMostSteps = 8'000'000;
constexpr double kNever = -1;

struct Message {
  int from = 0;
  int to = 0;
  const Step* send = nullptr;
  const Step* receive = nullptr;  // null until it is posted
  std::size_t receipt = 0;        // of that
  double arrival = kNever;
  bool has_left = false;  // the sender's memory is free
  bool has_started = false;
  bool is_received = false;
};

struct Rank {
  Schedule schedule;
  std::size_t next = 0;  // step
  double clock = 0;
  double link_free = 0;   // of its messages inside the host
  double hears_free = 0;  // when it has dealt with what arrived
  bool is_busy = false;   // a resume is under way
  bool meets = false;
  std::size_t outstanding = 0;
  std::size_t sends_of_others = 0;                // from the memory of other ranks
  std::unordered_map<int, std::size_t> expected;  // receives under way, by peer
  Scoreboard scoreboard;
};

struct Event {
  enum class Kind : std::uint8_t { kResume, kStart, kReach, kCome, kLeave, kArrive };
  double time;
  std::uint64_t order;  // of equal times: first made, first served
  Kind kind;
  std::uint64_t subject;  // a rank or a message
  bool operator>(const Event& other) const {
    return std::pair(time, order) > std::pair(other.time, other.order);
  }
};

class Simulation {
 public:
  Simulation(const SimulatedCluster& cluster, const SimulationOptions& options,
             SimulationObserver* observer)
      : cluster_(cluster),
        costs_(cluster.costs),
        options_(options),
        observer_(observer),
        ranks_(cluster.hosts.host_of.size()),
        egress_free_(cluster.hosts.size()),
        ingress_free_(cluster.hosts.size()),
        met_(cluster.hosts.size()) {}

  SimulationResult run(const std::function<Schedule(int)>& build) {
    require_few_steps(build);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].schedule = build(static_cast<int>(rank));
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) push(0, Event::Kind::kResume, rank);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      handle(event);
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) require_end(static_cast<int>(rank));
    return result_;
  }

 private:
  using Kind = Step::Kind;

  struct Channel {  // what is not yet matched
    std::deque<std::uint64_t> sends;
    std::deque<std::pair<const Step*, std::size_t>> receives;  // and its receipt
  };

  // By two ranks, before much memory is spent: a root may have more steps than the others, and is
  // not the first and the last rank at once.
  void require_few_steps(const std::function<Schedule(int)>& build) const {
    const int last = static_cast<int>(ranks_.size()) - 1;
    const std::size_t steps = std::min(build(0).steps.size(), build(last).steps.size());
    if (steps * ranks_.size() <= kMostSteps) return;
    fail(ErrorCode::kUnsupported,
         "simulating {} ranks: the algorithm takes about {} million steps, more than {} million; "
         "choose another one or fewer ranks",
         ranks_.size(), steps * ranks_.size() / 1'000'000, kMostSteps / 1'000'000);
  }

  void push(double time, Event::Kind kind, std::uint64_t subject) {
    events_.push({time, next_order_++, kind, subject});
  }

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  std::size_t host_of(int rank) const {
    return static_cast<std::size_t>(cluster_.hosts.host_of[static_cast<std::size_t>(rank)]);
  }
  const LinkCost& link(int from, int to) const {
    return host_of(from) == host_of(to) ? costs_.sockets : costs_.network;
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
      case Event::Kind::kCome:
        come(event.subject, event.time);
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

  void leave(Message& message) {
    message.has_left = true;
    Rank& sender = at(message.from);
    --sender.outstanding;
    if (message.send->owner >= 0) --sender.sends_of_others;
  }

  void wake(int number, double time) {
    Rank& rank = at(number);
    if (rank.is_busy || rank.meets) return;
    rank.clock = std::max(rank.clock, time);
    advance(number);
  }

  // Carries out steps until one must wait.
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
    rank.scoreboard.update([&](std::uint64_t id) {
      const bool has_ended = id % 2 == 0 ? messages_[id / 2].has_left : receipts_[id / 2];
      return has_ended ? std::numeric_limits<std::size_t>::max() : std::size_t{0};
    });
    const auto own = [&](const Place& place) { return bytes_of(number, place, step.count); };
    switch (step.kind) {
      case Kind::kSend:
        return step.owner >= 0 || rank.scoreboard.may_read(own(step.from));
      case Kind::kReceive:
        return rank.scoreboard.may_write(own(step.to));
      case Kind::kAwait:
        return rank.expected[step.peer] == 0;
      case Kind::kCopy:
        if (stays(number, step)) return true;
        return (step.owner >= 0 || rank.scoreboard.may_read(own(step.from))) &&
               rank.scoreboard.may_write(own(step.to));
      case Kind::kReduce:
        for (std::size_t i = 0; i < step.num_operands; ++i) {
          const Operand& operand = rank.schedule.operands[step.first_operand + i];
          if (operand.owner < 0 && !rank.scoreboard.may_read(own(operand.place))) return false;
        }
        return rank.scoreboard.may_write(own(step.to));
      case Kind::kMeet:
        return rank.scoreboard.empty() && rank.sends_of_others == 0;
    }
    return true;
  }

  std::size_t element(Space space) const {
    return space == Space::kPartial ? options_.partial_bytes : options_.element_bytes;
  }

  // Made-up addresses: the spaces lie far apart, but for an input inside the output.
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

  // A copy onto itself.
  bool stays(int rank, const Step& step) const {
    return step.owner < 0 && bytes_of(rank, step.from, 1).begin == bytes_of(rank, step.to, 1).begin;
  }

  void send(int number, Rank& rank, const Step& step) {
    const std::uint64_t id = messages_.size();
    messages_.push_back({.from = number, .to = step.peer, .send = &step});
    ++rank.outstanding;
    if (step.owner < 0) {
      rank.scoreboard.begin(2 * id, bytes_of(number, step.from, step.count), false);
    } else {
      ++rank.sends_of_others;
    }
    rank.clock += link(number, step.peer).message_s;
    if (observer_ != nullptr) observer_->on_send(id, number);
    Channel& channel = channels_[key(number, step.peer)];
    channel.sends.push_back(id);
    match(channel, rank.clock);
    if (!options_.is_unbuffered) push(rank.clock, Event::Kind::kStart, id);
  }

  void receive(int number, Rank& rank, const Step& step) {
    ++rank.outstanding;
    ++rank.expected[step.peer];
    Channel& channel = channels_[key(step.peer, number)];
    rank.scoreboard.begin(2 * receipts_.size() + 1, bytes_of(number, step.to, step.count), true);
    channel.receives.push_back({&step, receipts_.size()});
    receipts_.push_back(false);
    match(channel, rank.clock);
  }

  static std::uint64_t key(int from, int to) {
    return static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to);
  }

  void match(Channel& channel, double time) {
    while (!channel.sends.empty() && !channel.receives.empty()) {
      const std::uint64_t id = channel.sends.front();
      Message& message = messages_[id];
      std::tie(message.receive, message.receipt) = channel.receives.front();
      channel.sends.pop_front();
      channel.receives.pop_front();
      require_match(message);
      if (options_.is_unbuffered) {
        push(time, Event::Kind::kStart, id);
      } else if (message.arrival != kNever) {
        push(std::max(time, message.arrival), Event::Kind::kArrive, id);
      }
    }
  }

  void require_match(const Message& message) const {
    const bool is_partial = message.send->from.space == Space::kPartial;
    check(message.send->count == message.receive->count &&
              is_partial == (message.receive->to.space == Space::kPartial),
          "simulating: rank {} sends {} elements, rank {} expects {} or another kind", message.from,
          message.send->count, message.to, message.receive->count);
  }

  double length_of(const Message& message) const {
    const std::size_t payload = message.send->count * element(message.send->from.space);
    return static_cast<double>(sizeof(MessageHeader) + payload);
  }

  // On its way: out of the sending host's interface, or through the sender's socket.
  void start(std::uint64_t id, double time) {
    Message& message = messages_[id];
    if (message.has_started) return;
    message.has_started = true;
    ++result_.num_messages;
    const LinkCost& cost = link(message.from, message.to);
    const bool is_inside = &cost == &costs_.sockets;
    double& free = is_inside ? at(message.from).link_free : egress_free_[host_of(message.from)];
    const double begin = std::max(time, free);
    free = begin + length_of(message) / cost.bytes_per_s;
    if (is_inside) {
      push(free + cost.latency_s, Event::Kind::kCome, id);
    } else {
      result_.network_bytes += static_cast<std::uint64_t>(length_of(message));
      push(begin + cost.latency_s, Event::Kind::kReach, id);
    }
    if (!options_.is_unbuffered) push(free, Event::Kind::kLeave, id);
  }

  // Its first byte is at the receiving host's interface.
  void reach(std::uint64_t id, double time) {
    double& free = ingress_free_[host_of(messages_[id].to)];
    free = std::max(time, free) + length_of(messages_[id]) / costs_.network.bytes_per_s;
    push(free, Event::Kind::kCome, id);
  }

  // It is there, and costs its receiver time.
  void come(std::uint64_t id, double time) {
    Message& message = messages_[id];
    double& free = at(message.to).hears_free;
    free = std::max(time, free) + link(message.from, message.to).message_s;
    message.arrival = free;
    if (message.receive != nullptr) push(free, Event::Kind::kArrive, id);
  }

  void arrive(std::uint64_t id, double time) {
    Message& message = messages_[id];
    if (message.is_received) return;
    message.is_received = true;
    receipts_[message.receipt] = true;
    if (observer_ != nullptr) {
      observer_->on_receive(id, message.from, *message.send, message.to, *message.receive);
    }
    Rank& receiver = at(message.to);
    --receiver.outstanding;
    --receiver.expected[message.from];
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
    push(rank.clock, Event::Kind::kResume, static_cast<std::uint64_t>(number));
  }

  void meet(int number, Rank& rank) {
    const std::size_t host = host_of(number);
    const auto& members = cluster_.hosts.members[host];
    rank.meets = true;
    if (++met_[host] < members.size()) return;
    met_[host] = 0;
    double latest = 0;
    for (const int member : members) latest = std::max(latest, at(member).clock);
    if (observer_ != nullptr) observer_->on_meet(members);
    for (const int member : members) {
      at(member).meets = false;
      at(member).is_busy = true;
      push(latest + costs_.meet_s, Event::Kind::kResume, static_cast<std::uint64_t>(member));
    }
  }

  void require_end(int number) {
    const Rank& rank = at(number);
    check(rank.next == rank.schedule.steps.size() && rank.outstanding == 0,
          "simulating: rank {} waits for ever at step {} of {}, with {} messages under way", number,
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
  std::vector<bool> receipts_;  // of receives: whether they have ended
  std::unordered_map<std::uint64_t, Channel> channels_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t next_order_ = 0;
  SimulationResult result_;
};

}  // namespace

SimulationResult simulate(const SimulatedCluster& cluster,
                          const std::function<Schedule(int)>& build,
                          const SimulationOptions& options, SimulationObserver* observer) {
  return Simulation(cluster, options, observer).run(build);
}

}  // namespace paceline
