#pragma once

// One rank of a library that is measured. A program under benchmarks/contestants implements this
// and hands it to run_worker(); everything else, what is written before a call and how it is timed
// and checked, is the same for all.
//
// Thread safety: none is needed; a worker calls from one thread.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench/operation.h"

namespace paceline::bench {

// Page-aligned memory; freed with its last owner.
struct Memory {
  std::byte* data = nullptr;
  std::shared_ptr<void> owner;
};

// Private memory of this process, from the kernel, as malloc() returns for large blocks.
Memory ordinary_memory(std::size_t bytes);

class Contestant {
 public:
  virtual ~Contestant() = default;

  // "Open MPI 4.1.4".
  virtual std::string version() const = 0;

  // Why the library cannot do it, for example "has no bfloat16"; empty if it can. The same on every
  // rank.
  virtual std::string lacks(Op op, Dtype dtype, Placement placement) const = 0;

  // False for a yardstick that only moves bytes: it has no result to check.
  virtual bool gives_results() const { return true; }

  // Collective. Memory of the kind for an input or an output; a library without symmetric memory is
  // only asked for ordinary memory.
  virtual Memory allocate(MemoryKind kind, std::size_t bytes);
  virtual bool has_symmetric_memory() const { return false; }

  // Blocks until this rank's part is done. `call` is as for the engine's backends: in place if
  // input
  // == output, for all_gather if input is this rank's block of output. Reductions are sums; the
  // counts of operations with counts are equal. Op::kSend sends `count` elements to the next rank
  // and receives as many from the one before. Errors are exceptions.
  virtual void run(const Collective& call) = 0;
  // One call for `parts` equal parts of call.output, in place.
  virtual bool coalesces() const { return false; }
  virtual void run_coalesced(const Collective& call, std::size_t parts);
};

struct WorkerPlace {
  int rank = 0;
  int world_size = 1;
  std::vector<int> cpus;  // to which this process is bound; empty: not bound
  std::string algorithm;  // the one asked for, for Paceline's messages; empty: none
};

// Brings the library up; called once this process is bound. Errors are exceptions.
using Connect = std::function<std::unique_ptr<Contestant>(const WorkerPlace& place)>;

// The main program of one rank of a contestant: reports to the coordinator (messages.h), binds
// itself, brings its library up, and measures when it is told to. Returns the exit code. argv[1] is
// the name of the coordinator's socket.
//
//   int main(int argc, char** argv) {
//     return paceline::bench::run_worker(argc, argv, [](const WorkerPlace& place) {
//       return std::make_unique<Mine>(place);
//     });
//   }
//
// It ends when the coordinator does, even while the library hangs.
int run_worker(int argc, char** argv, const Connect& connect);

}  // namespace paceline::bench
