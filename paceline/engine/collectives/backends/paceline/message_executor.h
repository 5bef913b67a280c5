#pragma once

// Runs schedules over messages: between hosts, and wherever ranks do not share memory. Large
// reductions are cut into pieces, so that scratch stays small.
//
// Steps are carried out in order; sends and receives last while later steps go on, and a step that
// needs what is still on its way waits for just that (algorithms/schedule.h). A reduce begins with
// the bytes that are there.
//
// Where ranks of one host share memory, the scratch of a hierarchy lies there: ranks of the host
// read each other's, and meet in between.
//
// Every message carries the fingerprint, and headers are read as they come, also those that the
// schedule does not expect: ranks that make different calls may have chosen different algorithms. A
// rank that has waited for a while tells all others that it has arrived (a presence), and answers
// ranks that ask which ranks it waits for, so that a time-out names the rank that is missing and
// not one that waits like itself.
//
// Thread safety: none; calls come one at a time.

#include <deque>
#include <map>
#include <tuple>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/algorithms/scoreboard.h"
#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/backends/paceline/group_share.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/selection/algorithm.h"
#include "paceline/engine/collectives/selection/planner.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/transport/exchange.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

class MessageExecutor {
 public:
  // `planner` chooses the algorithms; `share` is null where this rank has none. Requires: the same
  // planner on all ranks; all outlive this object; one executor at a time on `exchange`.
  MessageExecutor(Mesh& mesh, Exchange& exchange, const Planner& planner, HostShare* share);

  void run(const Collective& call, const Fingerprint& fingerprint, const WaitOptions& wait);

 private:
  struct Piece;
  struct Operation;
  struct Transfer {
    int peer;
    std::uint64_t number;
    bool is_send;
  };

  Candidate plan_for(const Collective& call);
  std::size_t piece_count(const Collective& call, Algorithm algorithm);
  std::size_t hierarchy_count(const Collective& call);
  void begin_piece(Operation& operation, Piece piece);
  void end_piece(Operation& operation);
  void carry_out(Operation& operation, const Step& step);
  void send(Operation& operation, const Step& step);
  void receive(Operation& operation, const Step& step);
  void copy(Operation& operation, const Step& step);
  void meet(Operation& operation);
  void reduce(Operation& operation, const Step& step);
  void make_room(Operation& operation, const Schedule& schedule, std::size_t pieces);
  void require_room(const Operation& operation, const Schedule& schedule) const;

  std::byte* address(const Operation& operation, const Place& place, int owner = -1);
  Scoreboard::Bytes bytes_of(const Operation& operation, const Place& place, std::size_t count,
                             int owner = -1);

  template <class Ready>
  void wait_until(Operation& operation, Ready ready);
  void finish(Operation& operation);
  Exchange::CheckHeader header_check(const Operation& operation);
  void say_present(Operation& operation);
  void answer(const Operation& operation);
  std::vector<Awaited> awaited(const Operation& operation) const;
  Missing missing(const Operation& operation) const;

  Mesh& mesh_;
  Exchange& exchange_;
  const Planner& planner_;
  HostShare* const share_;
  std::map<std::tuple<Op, Dtype, std::size_t>, Candidate> plans_;
  std::map<std::tuple<Op, Dtype, int>, std::size_t> hierarchy_counts_;  // by root
  std::vector<Transfer> transfers_;  // of the collective under way
  Scoreboard scoreboard_;            // their numbers
  Mapping scratch_;                  // given back with the group, which malloc() would not promise
  std::vector<std::byte> partials_;
  std::vector<ReduceSource> sources_;     // of the reduce under way
  std::vector<std::uint32_t> last_seen_;  // by rank: the latest collective that its messages named
  AwakeClock::time_point last_end_;       // of a collective
};

}  // namespace paceline
