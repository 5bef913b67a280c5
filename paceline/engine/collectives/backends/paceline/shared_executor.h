#pragma once

// Runs collectives among ranks that map each other's memory: choose_route() decides how a call is
// carried out, SharedPlans caches the decision, SharedExecutor follows it, and SharedRunner carries
// out the schedules (algorithms/in_shared_memory.h).
//
// The choice is a pure function of facts that all ranks agree on, so all of them choose alike;
// explain() describes the choice.

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/backends/paceline/group_share.h"
#include "paceline/engine/collectives/backends/paceline/symmetric_regions.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/selection/planner.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

struct SharedTerms {
  int world_size = 1;
  bool shares_cores = false;  // there are more ranks than cores, so they wait longer for each other
};

struct SharedRoute {
  // kTiny: always through the staging area. kSmall: in place if all buffers are symmetric, else
  // through the staging area in one piece, which ranks without symmetric buffers write before the
  // ranks meet. kLarge: in place if all buffers are symmetric, else staged in pieces.
  enum class Method { kTiny, kSmall, kLarge };
  Method method = Method::kTiny;
  bool is_one_shot = false;  // in a staged call, every rank reduces everything itself
};

SharedRoute choose_route(const SharedTerms& terms, const PlanRequest& request);
// Describes the choice in one line of text.
std::string explain_route(const SharedTerms& terms, const PlanRequest& request);

// The most elements of a call, or of each of its blocks, in a piece that fits into a staging area.
std::size_t staged_piece_count(Op op, Dtype dtype, int world_size);

// A cache of values. Each key maps to one slot, which holds only the last key stored there, so a
// lookup is one comparison and costs a small call a few nanoseconds. A Key has operator== and
// place(), the index of its slot, below kNumPlaces. Thread safety: none; one executor owns it.
template <class Key, class Value>
class SlotCache {
 public:
  static constexpr std::size_t kNumPlaces = 256;

  // The value for `key`; calls `make` if the cache does not hold it. Valid until the next call.
  template <class Make>
  const Value& find(const Key& key, Make&& make) {
    Entry& entry = entries_[key.place()];
    if (!entry.is_used || !(entry.key == key)) [[unlikely]]
      entry = {true, key, make()};
    return entry.value;
  }

 private:
  struct Entry {
    bool is_used = false;
    Key key;
    Value value;
  };
  std::vector<Entry> entries_{kNumPlaces};
};

struct SharedPlan {
  SharedRoute route;
  Schedule staged;  // schedule of the whole call; empty for a large call
};

// A cache of plans for calls in shared memory, by operation, type, root and count.
class SharedPlans {
 public:
  // `terms` outlives this object.
  SharedPlans(const SharedTerms& terms, int rank) : terms_(terms), rank_(rank) {}

  // Valid until the next call.
  const SharedPlan& find(const Collective& call) {
    return plans_.find({call.op, call.dtype, call.root, call.count}, [&] { return make(call); });
  }

 private:
  struct Key {
    Op op = Op::kBarrier;
    Dtype dtype = Dtype::kUint8;
    int root = 0;
    std::size_t count = 0;

    bool operator==(const Key&) const = default;
    std::size_t place() const {
      const std::size_t form = static_cast<std::size_t>(root) << 16 |
                               static_cast<std::size_t>(op) << 8 | static_cast<std::size_t>(dtype);
      return (count * 0x9e3779b97f4a7c15u + form * 0xc2b2ae3d27d4eb4fu) >> 56;
    }
  };
  SharedPlan make(const Collective& call) const;

  const SharedTerms& terms_;
  const int rank_;
  SlotCache<Key, SharedPlan> plans_;
};

// The key of a schedule. Requires: the operation has equal counts, and all keys belong to one rank
// of one group, because == does not compare ranks and world sizes.
struct ScheduleKey {
  using Build = Schedule (*)(const ScheduleSpec& spec);

  ScheduleSpec spec;
  Build build = nullptr;

  bool operator==(const ScheduleKey& other) const;
  std::size_t place() const;
};

// A cache of the schedules of staged pieces and of in-place calls.
class SharedSchedules {
 public:
  // Valid until the next call.
  const Schedule& find(const ScheduleSpec& spec, ScheduleKey::Build build) {
    return schedules_.find({spec, build}, [&] { return build(spec); });
  }

 private:
  SlotCache<ScheduleKey, Schedule> schedules_;
};

// A part of a call, with everything that its schedule needs.
struct SharedPiece {
  using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);

  const SharedOperation& operation;
  const Schedule& schedule;
  unsigned turn = 0;         // SharedAreas::begin_piece(); selects the staging area
  std::size_t begin = 0;     // first element, of the call or of each of its blocks
  bool is_in_place = false;  // reads and writes the other ranks' buffers in place
  Copy copy = copy_bytes;
};

// Carries out schedules; their scratch lies in the ranks' staging areas. Thread safety: none; one
// executor owns it.
class SharedRunner {
 public:
  // Requires: all arguments outlive this object.
  SharedRunner(const Mesh& mesh, GroupShare& share, const SymmetricRegions& regions);

  // Runs the steps before the first meeting, which use only this rank's memory.
  void prepare(const SharedPiece& piece);
  // Runs the steps after the first meeting, once the ranks have met. Requires: prepare() was
  // called.
  void finish(const SharedPiece& piece);
  // Runs all steps, including the meetings. For a piece in place, requires: the ranks have called
  // enter_with_places(), and regions.hold_all() has accepted their buffers.
  void run(const SharedPiece& piece);

 private:
  // The addresses at which the piece begins in one rank's memory, indexed by Space. The buffers of
  // other ranks are known only for a piece in place.
  using Bases = std::array<std::byte*, 3>;

  void find_bases(const SharedPiece& piece);
  std::size_t run_from(const SharedPiece& piece, std::size_t step);
  void meet_and_run_from(const SharedPiece& piece, std::size_t step);
  std::byte* address(const Place& place, int owner) const {
    const auto space = static_cast<std::size_t>(place.space);
    const auto rank = static_cast<std::size_t>(owner < 0 ? rank_ : owner);
    return (*bases_)[rank][space] + place.offset * element_;
  }
  void find_targets(const SharedPiece& piece, const Step& step);
  void copy(const SharedPiece& piece, const Step& step);
  void reduce(const SharedPiece& piece, const Step& step);

  const int rank_;
  GroupShare& share_;
  const SymmetricRegions& regions_;
  // The bases of every rank; one list for each of the two staging areas.
  std::array<std::vector<Bases>, 2> bases_of_turns_;
  std::vector<Bases>* bases_ = nullptr;  // the bases of the piece under way
  std::size_t element_ = 0;              // bytes of an element
  // The sources that the step under way reads, and the addresses that it writes.
  std::vector<ReduceSource> sources_;
  std::vector<std::byte*> targets_;
};

// Runs collectives by the route that choose_route() selects:
//
//   in place if the call is not tiny and all ranks' buffers are symmetric: after all ranks have
//   arrived, each rank reads its peers' inputs and writes its peers' outputs where they lie; no
//   rank returns before all ranks have finished;
//   staged otherwise: through the staging areas, a large call in several pieces.
//
// Thread safety: none; calls come one at a time.
class SharedExecutor {
 public:
  // Requires: mesh and share outlive this object.
  SharedExecutor(Mesh& mesh, GroupShare& share, std::shared_ptr<SymmetricRegistry> registry);
  SharedExecutor(const SharedExecutor&) = delete;
  SharedExecutor& operator=(const SharedExecutor&) = delete;

  void run(const Collective& call, const Fingerprint& fingerprint, const WaitOptions& wait);
  std::string explain(const PlanRequest& request) const { return explain_route(terms_, request); }
  // Allocates symmetric memory. Collective.
  std::shared_ptr<SharedBlocks> allocate(std::size_t bytes, Pages pages, Deadline deadline) {
    return regions_.allocate(bytes, pages, deadline);
  }
  // The buffers of all ranks in the last call of EngineGroup::visit(); empty unless all of them lie
  // in one symmetric allocation.
  const std::vector<std::byte*>& visited() const { return visited_; }
  // Whether [data, data + bytes) lies in symmetric memory with a block for every rank of this
  // group, no matter which of the related groups allocated it.
  bool is_symmetric(const void* data, std::size_t bytes) {
    return regions_.find(data, bytes).region >= 0;
  }

 private:
  void enter_visit(const SharedOperation& operation);
  void run_tiny(const SharedOperation& operation, const Schedule& schedule);
  void run_small(const SharedOperation& operation, const SharedPlan& plan);
  void run_large(const SharedOperation& operation, const SharedRoute& route);
  void run_in_place(const SharedOperation& operation);
  void run_staged(const SharedOperation& operation, const SharedRoute& route);

  ScheduleSpec spec_of(const Collective& call, std::size_t count) const;
  SharedPiece::Copy copy_for(const SharedOperation& operation) const;

  const int rank_;
  const SharedTerms terms_;
  GroupShare& share_;
  SymmetricRegions regions_;
  SharedPlans plans_;
  SharedSchedules schedules_;  // schedules of staged pieces and in-place calls
  SharedRunner runner_;
  std::vector<std::byte*> visited_;
};

}  // namespace paceline
