#pragma once

// One rank of a library that is measured. A program under benchmarks/contestants implements
// Contestant and calls run_worker(). Everything else is the same for all libraries: writing the
// buffers before a call, and timing and checking the call.
//
// Thread safety: none is needed; each rank calls its contestant from one thread.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench/operation.h"

namespace paceline::bench {

// Page-aligned memory, which is freed with its last owner.
struct Memory {
  std::byte* data = nullptr;
  std::shared_ptr<void> owner;
};

// Private memory of this process, taken from the kernel as malloc() does for large blocks.
Memory ordinary_memory(std::size_t bytes);

class Contestant {
 public:
  virtual ~Contestant() = default;

  // The library and its version, for example "Open MPI 4.1.4".
  virtual std::string version() const = 0;

  // Why the library does not support calls with these arguments, for example "has no bfloat16";
  // empty if it supports them. The answer is the same on every rank.
  virtual std::string lacks(Op op, Dtype dtype, Placement placement) const = 0;

  // Whether there are results to check. False for a yardstick that only moves bytes.
  virtual bool gives_results() const { return true; }

  // Collective. Allocates memory of kind `kind` for an input or an output; `kind` is kOrdinary
  // if the library has no symmetric memory.
  virtual Memory allocate(MemoryKind kind, std::size_t bytes);
  virtual bool has_symmetric_memory() const { return false; }

  // Makes the call, and blocks until this rank's part is done. `call` has the form that the
  // engine's backends get: it is in place if input == output, or, for all_gather, if input is this
  // rank's block of output. Reductions are sums; the counts of operations with counts are equal.
  // Op::kSend sends `count` elements to the next rank and receives as many from the previous rank.
  // Errors are exceptions.
  virtual void run(const Collective& call) = 0;
  // Whether run_coalesced() is supported: one call for `parts` equal parts of call.output, in
  // place.
  virtual bool coalesces() const { return false; }
  virtual void run_coalesced(const Collective& call, std::size_t parts);
};

struct WorkerPlace {
  int rank = 0;
  int world_size = 1;
  std::vector<int> cpus;  // cpus to which this process is bound; empty: not bound
  std::string algorithm;  // the algorithm for Paceline's messages; empty: any
};

// Initialises the library. Called after this process has been bound. Errors are exceptions.
using Connect = std::function<std::unique_ptr<Contestant>(const WorkerPlace& place)>;

// The main program of one rank of a contestant: reports to the coordinator (messages.h), binds
// itself, initialises its library, and measures whenever it has a turn. Returns the exit code.
// argv[1] is the name of the coordinator's socket.
//
//   int main(int argc, char** argv) {
//     return paceline::bench::run_worker(argc, argv, [](const WorkerPlace& place) {
//       return std::make_unique<Mine>(place);
//     });
//   }
//
// The process ends when the coordinator ends, even if the library hangs.
int run_worker(int argc, char** argv, const Connect& connect);

}  // namespace paceline::bench
