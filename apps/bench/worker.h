#pragma once

// The main program of one rank of a contestant: reports to the coordinator (messages.h), binds
// itself, brings its library up, and measures when it is told to.
//
//   int main(int argc, char** argv) {
//     return paceline::bench::run_worker(argc, argv, [](const WorkerPlace& place) {
//       return std::make_unique<Mine>(place);
//     });
//   }
//
// It ends when the coordinator does, even while the library hangs.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench/contestant.h"

namespace paceline::bench {

struct WorkerPlace {
  int rank = 0;
  int world_size = 1;
  std::vector<int> cpus;  // to which this process is bound; empty: not bound
  std::string algorithm;  // that was asked for, of Paceline's messages; empty: none
};

// Brings the library up; called once this process is where it will stay. Errors are exceptions.
using Connect = std::function<std::unique_ptr<Contestant>(const WorkerPlace& place)>;

// The exit code. argv[1] is the name of the coordinator's socket.
int run_worker(int argc, char** argv, const Connect& connect);

}  // namespace paceline::bench
