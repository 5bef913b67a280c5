// Paceline itself, measured like everybody else.

#include "paceline/bench/own_contestant.h"
#include "paceline/bench/worker.h"
#include "paceline/collectives/init.h"

int main(int argc, char** argv) {
  return paceline::bench::run_worker(argc, argv, [](const paceline::bench::WorkerPlace&) {
    return std::make_unique<paceline::bench::OwnContestant>(paceline::init_process_group());
  });
}
