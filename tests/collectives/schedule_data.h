#pragma once

// Runs all ranks' schedules without a network, with real bytes: the simulator decides the order,
// this moves the data at the latest moment at which it may move.

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/collectives/kernels/reduce.h"
#include "paceline/collectives/planning/algorithm.h"
#include "paceline/simulation/simulator.h"

namespace paceline {

struct ScheduleCase {
  Algorithm algorithm = Algorithm::kDirect;
  Collective call;  // without buffers
  int world = 1;
  bool in_place = false;
  Hosts hosts;  // empty: each rank its own
  std::size_t chunk = 100;
};

class ScheduleRun : public SimulationObserver {
 public:
  using Bytes = std::vector<std::byte>;

  explicit ScheduleRun(ScheduleCase test) : test_(std::move(test)) {
    if (test_.hosts.host_of.empty()) test_.hosts = Hosts::blocks(test_.world, 1);
    if (has_counts(test_.call.op)) blocks_ = BlockTable::of(test_.call, test_.world);
    for (int rank = 0; rank < test_.world; ++rank) {
      inputs_.push_back(random_bytes(input_count(test_.call, rank, test_.world), rank));
      outputs_.emplace_back(output_count(test_.call, rank, test_.world) * element());
      schedules_.push_back(build(test_.algorithm, spec_of(rank)));
      scratch_.emplace_back(schedules_.back().scratch_count * element());
      partials_.emplace_back(schedules_.back().partial_count * partial_size_of(test_.call.dtype));
      heard_.push_back({rank});
      if (const auto begin = input_in_output(rank)) {
        std::copy(inputs_.back().begin(), inputs_.back().end(),
                  outputs_.back().begin() + static_cast<std::ptrdiff_t>(*begin * element()));
      }
    }
  }

  SimulationResult run() {
    SimulationOptions options;
    options.element_bytes = element();
    options.partial_bytes = partial_size_of(test_.call.dtype);
    options.is_unbuffered = true;
    options.input_in_output = [this](int rank) { return input_in_output(rank); };
    const SimulatedCluster cluster{test_.hosts, {}};
    return simulate(
        cluster, [this](int rank) { return schedules_[static_cast<std::size_t>(rank)]; }, options,
        this);
  }

  const Bytes& output(int rank) const { return outputs_[static_cast<std::size_t>(rank)]; }
  const Schedule& schedule(int rank) const { return schedules_[static_cast<std::size_t>(rank)]; }

  // What the operation promises, straight from the inputs.
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

  bool everybody_heard_of_all() const {
    for (const auto& heard : heard_) {
      if (heard.size() != static_cast<std::size_t>(test_.world)) return false;
    }
    return true;
  }

  // Whether the rank sends to the next one before it waits for anything.
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
  void on_copy(int rank, const Step& step) override {
    const std::byte* from = at(step.owner < 0 ? rank : step.owner, step.from, step.count);
    std::byte* to = at(rank, step.to, step.count);
    if (from != to) std::memcpy(to, from, step.count * size_in(step.to.space));
  }
  void on_reduce(int rank, const Step& step, const Schedule& schedule) override {
    std::vector<ReduceSource> sources;
    for (std::size_t i = 0; i < step.num_operands; ++i) {
      const Operand& operand = schedule.operands[step.first_operand + i];
      sources.push_back({at(operand.owner < 0 ? rank : operand.owner, operand.place, step.count),
                         operand.num_ranks, operand.place.space == Space::kPartial});
    }
    const bool is_partial = step.to.space == Space::kPartial;
    reduce_partials(sources, at(rank, step.to, step.count), step.count, test_.call.dtype,
                    test_.call.reduce_op,
                    is_partial ? ReduceResult::kPartial : ReduceResult::kFinal,
                    static_cast<std::size_t>(test_.world));
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

  // Where an in-place input lies: its own block of what is gathered, the beginning otherwise.
  std::optional<std::size_t> input_in_output(int rank) const {
    const auto self = static_cast<std::size_t>(rank);
    if (!test_.in_place || inputs_[self].empty() || outputs_[self].empty()) return {};
    const Op op = test_.call.op;
    const bool gathers = op == Op::kAllGather || op == Op::kGather || op == Op::kAllGatherV;
    return gathers ? spec_of(rank).placed(rank, rank).offset : 0;
  }

  // Modest numbers of either sign in every type, none of which are sums of others.
  Bytes random_bytes(std::size_t count, int rank) const {
    Bytes bytes(count * element());
    std::mt19937 random(static_cast<unsigned>(rank) * 7919 + static_cast<unsigned>(count));
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

  std::byte* at(int rank, const Place& place, std::size_t count) {
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
  std::vector<std::set<int>> heard_;  // of whose beginning each rank knows
  std::vector<std::set<int>> known_;  // by message, when it was sent
};

}  // namespace paceline
