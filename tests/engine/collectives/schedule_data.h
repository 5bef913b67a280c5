#pragma once

// Runs all ranks' schedules with real bytes but without a network. Messages are moved in the order
// that the simulator decides, each at the latest moment at which it may be moved. Schedules of
// shared memory run from one meeting to the next.

#include <cstring>
#include <functional>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/selection/algorithm.h"
#include "paceline/engine/collectives/selection/simulator.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"

#include "tests/engine/collectives/quick_random.h"

namespace paceline {

struct ScheduleCase {
  Algorithm algorithm = Algorithm::kDirect;
  Collective call;  // without buffers
  int world = 1;
  bool in_place = false;
  Hosts hosts;  // empty: each rank is on its own host
  std::size_t chunk = 100;
};

// All ranks' buffers and schedules.
class ScheduleData {
 public:
  using Bytes = std::vector<std::byte>;
  using Build = std::function<Schedule(const ScheduleSpec& spec)>;

  ScheduleData(ScheduleCase test, const Build& build) : test_(std::move(test)) {
    if (test_.hosts.host_of.empty()) test_.hosts = Hosts::blocks(test_.world, 1);
    if (has_counts(test_.call.op)) blocks_ = BlockTable::of(test_.call, test_.world);
    for (int rank = 0; rank < test_.world; ++rank) {
      inputs_.push_back(random_bytes(input_count(test_.call, rank, test_.world), rank));
      outputs_.emplace_back(output_count(test_.call, rank, test_.world) * element());
      schedules_.push_back(build(spec_of(rank)));
      scratch_.emplace_back(schedules_.back().scratch_count * element());
      partials_.emplace_back(schedules_.back().partial_count * partial_size_of(test_.call.dtype));
      if (const auto begin = input_in_output(rank)) {
        std::copy(inputs_.back().begin(), inputs_.back().end(),
                  outputs_.back().begin() + static_cast<std::ptrdiff_t>(*begin * element()));
      }
    }
  }
  virtual ~ScheduleData() = default;

  const Bytes& output(int rank) const { return outputs_[static_cast<std::size_t>(rank)]; }
  const Schedule& schedule(int rank) const { return schedules_[static_cast<std::size_t>(rank)]; }

  // The promised result, computed directly from the inputs.
  Bytes expected(int rank) const {
    const auto& call = test_.call;
    Bytes result;
    const auto append = [&](int from, std::size_t begin, std::size_t count) {
      const auto& input = inputs_[static_cast<std::size_t>(from)];
      const auto first = input.begin() + static_cast<std::ptrdiff_t>(begin * element());
      result.insert(result.end(), first, first + static_cast<std::ptrdiff_t>(count * element()));
    };
    const ScheduleSpec spec = spec_of(rank);
    const Block own = spec.given(rank, rank);
    switch (call.op) {
      case Op::kReduce:
        return rank == call.root ? total(0, call.count) : Bytes();
      case Op::kAllReduce:
        return total(0, call.count);
      case Op::kReduceScatter:
      case Op::kReduceScatterV:
        return total(own.offset, own.count);
      case Op::kBroadcast:
        append(call.root, 0, call.count);
        return result;
      case Op::kScatter:
        append(call.root, own.offset, own.count);
        return result;
      case Op::kGather:
        if (rank != call.root) return {};
        [[fallthrough]];
      case Op::kAllGather:
      case Op::kAllGatherV:
      case Op::kAllToAll:
      case Op::kAllToAllV:
        for (int from = 0; from < test_.world; ++from) {
          append(from, spec.given(from, rank).offset, spec.given(from, rank).count);
        }
        return result;
      default:
        return {};
    }
  }

 protected:
  void carry_out(int rank, const Step& step) {
    if (step.kind == Step::Kind::kReduce) {
      reduce_step(rank, step);
      return;
    }
    const std::byte* from = at(rank, step.from, step.count, step.owner);
    for (std::byte* to : targets(rank, step)) {
      if (from == to) continue;
      will_read(rank, from, step.count * size_in(step.from.space));
      will_write(rank, to, step.count * size_in(step.from.space));
      std::memcpy(to, from, step.count * size_in(step.from.space));
    }
  }
  virtual void will_read(int /*rank*/, const std::byte* /*data*/, std::size_t /*bytes*/) {}
  virtual void will_write(int /*rank*/, const std::byte* /*data*/, std::size_t /*bytes*/) {}

  std::vector<std::byte*> targets(int rank, const Step& step) {
    if (step.num_targets == 0) return {at(rank, step.to, step.count)};
    std::vector<std::byte*> all;
    for (std::size_t i = 0; i < step.num_targets; ++i) {
      const Target& target = schedule(rank).targets[step.first_target + i];
      all.push_back(at(rank, target.place, step.count, target.owner));
    }
    return all;
  }
  void reduce_step(int rank, const Step& step) {
    std::vector<ReduceSource> sources;
    for (std::size_t i = 0; i < step.num_operands; ++i) {
      const Operand& operand = schedule(rank).operands[step.first_operand + i];
      const Place place = operand.place;
      sources.push_back({at(rank, place, step.count, operand.owner), operand.num_ranks,
                         place.space == Space::kPartial});
      will_read(rank, sources.back().data, step.count * size_in(place.space));
    }
    const bool is_partial = step.to.space == Space::kPartial;
    const auto outs = targets(rank, step);
    for (const std::byte* out : outs) will_write(rank, out, step.count * size_in(step.to.space));
    reduce_partials(sources, outs, step.count, test_.call.dtype, test_.call.reduce_op,
                    is_partial ? ReduceResult::kPartial : ReduceResult::kFinal,
                    static_cast<std::size_t>(test_.world));
  }

  std::size_t element() const { return size_of(test_.call.dtype); }
  std::size_t size_in(Space space) const {
    return space == Space::kPartial ? partial_size_of(test_.call.dtype) : element();
  }

  ScheduleSpec spec_of(int rank) const {
    const auto& call = test_.call;
    ScheduleSpec spec{call.op, rank, test_.world, call.root, call.count, call.count, call.count};
    spec.blocks = &blocks_;
    spec.chunk = test_.chunk;
    spec.hosts = &test_.hosts;
    return spec;
  }

  // The position of an in-place input: the rank's own block of a gathered output, else the
  // beginning.
  std::optional<std::size_t> input_in_output(int rank) const {
    const auto self = static_cast<std::size_t>(rank);
    if (!test_.in_place || inputs_[self].empty() || outputs_[self].empty()) return {};
    const Op op = test_.call.op;
    const bool gathers = op == Op::kAllGather || op == Op::kGather || op == Op::kAllGatherV;
    return gathers ? spec_of(rank).placed(rank, rank).offset : 0;
  }

  // Moderate numbers of either sign in every type, none of which is a sum of others.
  Bytes random_bytes(std::size_t count, int rank) const {
    Bytes bytes(count * element());
    QuickRandom random(static_cast<std::uint64_t>(rank) * 7919 + count);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool is_high = (i + 1) % element() == 0;
      bytes[i] = static_cast<std::byte>(
          is_high && is_floating_point(test_.call.dtype) ? 0x38 | (random() & 0x87) : random());
    }
    return bytes;
  }

  Bytes total(std::size_t begin, std::size_t count) const {
    Bytes out(count * element());
    std::vector<const std::byte*> sources;
    for (const auto& input : inputs_) sources.push_back(input.data() + begin * element());
    reduce(sources, out.data(), count, test_.call.dtype, test_.call.reduce_op);
    return out;
  }

  // The address of `place` in the memory of `owner`, or of the rank itself.
  std::byte* at(int rank, const Place& place, std::size_t count, int owner = -1) {
    if (owner >= 0) rank = owner;
    const auto self = static_cast<std::size_t>(rank);
    Bytes* bytes = &scratch_[self];
    std::size_t offset = place.offset;
    if (place.space == Space::kPartial) bytes = &partials_[self];
    if (place.space == Space::kOutput) bytes = &outputs_[self];
    if (place.space == Space::kInput) {
      const auto begin = input_in_output(rank);
      bytes = begin ? &outputs_[self] : &inputs_[self];
      offset += begin.value_or(0);
    }
    EXPECT_LE((offset + count) * size_in(place.space), bytes->size())
        << "rank " << rank << " beyond the end of space " << static_cast<int>(place.space);
    return bytes->data() + offset * size_in(place.space);
  }

  ScheduleCase test_;
  BlockTable blocks_;
  std::vector<Schedule> schedules_;
  std::vector<Bytes> inputs_, outputs_, scratch_, partials_;
};

// Runs schedules that send messages.
class ScheduleRun : public ScheduleData, public SimulationObserver {
 public:
  explicit ScheduleRun(const ScheduleCase& test)
      : ScheduleData(test, [&](const ScheduleSpec& spec) { return build(test.algorithm, spec); }) {
    for (int rank = 0; rank < test_.world; ++rank) heard_.push_back({rank});
  }

  SimulationResult run() {
    SimulationOptions options;
    options.element_bytes = element();
    options.partial_bytes = partial_size_of(test_.call.dtype);
    options.is_unbuffered = true;
    options.input_in_output = [this](int rank) { return input_in_output(rank); };
    const SimulatedCluster cluster{test_.hosts, {}};
    return simulate(
        cluster, [this](int rank) { return schedule(rank); }, options, this);
  }

  bool everybody_heard_of_all() const {
    for (const auto& heard : heard_) {
      if (heard.size() != static_cast<std::size_t>(test_.world)) return false;
    }
    return true;
  }

  // Whether the rank sends to the next rank before it waits for anything.
  bool begins_with_next(int rank) const {
    for (const Step& step : schedule(rank).steps) {
      const bool waits_for_nothing = step.count == 0 || step.from.space == Space::kInput;
      if (step.kind == Step::Kind::kSend && waits_for_nothing &&
          step.peer == (rank + 1) % test_.world) {
        return true;
      }
      if (step.kind != Step::Kind::kSend && step.kind != Step::Kind::kReceive) return false;
    }
    return false;
  }

  void on_send(std::uint64_t message, int from) override {
    known_.resize(std::max<std::size_t>(known_.size(), message + 1));
    known_[message] = heard_[static_cast<std::size_t>(from)];
  }
  void on_receive(std::uint64_t message, int from, const Step& send, int to,
                  const Step& receive) override {
    heard_[static_cast<std::size_t>(to)].insert(known_[message].begin(), known_[message].end());
    if (send.count == 0) return;
    const int owner = send.owner < 0 ? from : send.owner;
    std::memcpy(at(to, receive.to, send.count), at(owner, send.from, send.count),
                send.count * size_in(send.from.space));
  }
  void on_copy(int rank, const Step& step) override { carry_out(rank, step); }
  void on_reduce(int rank, const Step& step, const Schedule& /*schedule*/) override {
    carry_out(rank, step);
  }
  void on_meet(const std::vector<int>& ranks) override {
    std::set<int> all;
    for (const int rank : ranks) {
      const auto& heard = heard_[static_cast<std::size_t>(rank)];
      all.insert(heard.begin(), heard.end());
    }
    for (const int rank : ranks) heard_[static_cast<std::size_t>(rank)] = all;
  }

 private:
  // For each rank, the ranks of which it knows that they have begun.
  std::vector<std::set<int>> heard_;
  std::vector<std::set<int>> known_;  // the same for the sender of each message, when it was sent
};

// Runs schedules for shared memory.
class SharedScheduleRun : public ScheduleData {
 public:
  using ScheduleData::ScheduleData;

  // Throws an error if a rank reads or writes a range that another rank writes before their next
  // meeting, or if the ranks do not meet equally often. Returns the number of meetings.
  int run() {
    std::vector<std::size_t> next(schedules_.size());
    for (int meetings = 0;; ++meetings) {
      std::size_t num_over = 0;
      for (int rank = 0; rank < test_.world; ++rank) {
        const auto& steps = schedule(rank).steps;
        std::size_t& step = next[static_cast<std::size_t>(rank)];
        while (step < steps.size() && steps[step].kind != Step::Kind::kMeet) {
          carry_out(rank, steps[step++]);
        }
        if (step++ == steps.size()) ++num_over;
      }
      require_no_race();
      uses_.clear();
      if (num_over == schedules_.size()) return meetings;
      check(num_over == 0, "{} of {} ranks do not come to meeting {}", num_over, schedules_.size(),
            meetings + 1);
    }
  }

 private:
  struct Use {
    int rank;
    const std::byte* begin;
    const std::byte* end;
    bool is_write;
  };

  void will_read(int rank, const std::byte* data, std::size_t bytes) override {
    uses_.push_back({rank, data, data + bytes, false});
  }
  void will_write(int rank, const std::byte* data, std::size_t bytes) override {
    uses_.push_back({rank, data, data + bytes, true});
  }
  void require_no_race() const {
    for (const Use& a : uses_) {
      for (const Use& b : uses_) {
        const bool overlap = a.begin < b.end && b.begin < a.end;
        check(!a.is_write || a.rank == b.rank || !overlap,
              "rank {} writes what rank {} {} before they meet", a.rank, b.rank,
              b.is_write ? "writes" : "reads");
      }
    }
  }

  std::vector<Use> uses_;  // uses since the last meeting
};

}  // namespace paceline
