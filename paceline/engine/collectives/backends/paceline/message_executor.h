#pragma once

// Runs schedules over messages: between hosts, and wherever ranks do not share memory. Large
// reductions, and large calls of the hierarchy, are cut into pieces, so that scratch stays small.
//
// Steps are carried out in order. Sends and receives continue while later steps run, and a step
// that needs bytes that are still under way waits only for those (algorithms/schedule.h). A reduce
// begins with the bytes that have arrived.
//
// If the ranks of a host share memory, the scratch of Algorithm::kHierarchy lies in that memory:
// the ranks of the host read each other's scratch, and meet between the steps.
//
// Every message carries the fingerprint, and headers are read as they arrive, even if the schedule
// does not expect them, because ranks that make different calls may have chosen different
// algorithms. A rank that has waited for a while tells all others that it has arrived (a presence
// message), and answers ranks that ask which ranks it waits for, so that a timeout error names the
// missing rank and not one that is itself waiting.
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
  // `planner` chooses the algorithms; `share` is null if this rank shares no memory. Requires: all
  // ranks have the same planner; all arguments outlive this object; only one executor at a time
  // uses `exchange`.
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
  void send_presence(Operation& operation);
  void answer(const Operation& operation);
  std::vector<Awaited> awaited(const Operation& operation) const;
  Missing missing(const Operation& operation) const;

  Mesh& mesh_;
  Exchange& exchange_;
  const Planner& planner_;
  HostShare* const share_;
  std::map<std::tuple<Op, Dtype, std::size_t>, Candidate> plans_;
  // The results of hierarchy_count() so far, by operation, type and root.
  std::map<std::tuple<Op, Dtype, int>, std::size_t> hierarchy_counts_;
  std::vector<Transfer> transfers_;  // transfers of the collective under way
  Scoreboard scoreboard_;            // the bytes that these transfers use
  // A mapping, because malloc() might not return the memory to the system when the group ends.
  Mapping scratch_;
  std::vector<std::byte> partials_;
  std::vector<ReduceSource> sources_;     // sources of the reduce under way
  std::vector<std::uint32_t> last_seen_;  // by rank: the latest collective that its messages named
  AwakeClock::time_point last_end_;       // when the last collective ended
};

}  // namespace paceline
