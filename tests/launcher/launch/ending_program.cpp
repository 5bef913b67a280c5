// A rank for the tests of endings: ending_program HOW. In the job's first generation rank 1 ends in
// the given way while rank 0 waits for it in a collective; in later ones all ranks exit with 0.
//
//   invalid, unsupported, timeout, system, corrupt, damaged
//              throws this Error, which is not caught
//   exception  throws a std::exception
//   object     throws an object that is not a std::exception
//   abort, segv, kill
//              raises this signal
//   1, 2, 86   exits with this code
//   damaged-late, invalid-late
//              aborts its group because of this Error, and exits a second later
//   progress   makes a step, then throws an Error of use

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/telemetry/step_log.h"

using namespace std::chrono_literals;
using paceline::DamagedState;
using paceline::Error;
using paceline::ErrorCode;

namespace {

void end_as(const std::string& how) {
  const std::map<std::string, ErrorCode> codes = {{"invalid", ErrorCode::kInvalid},
                                                  {"unsupported", ErrorCode::kUnsupported},
                                                  {"timeout", ErrorCode::kTimeout},
                                                  {"system", ErrorCode::kSystem},
                                                  {"corrupt", ErrorCode::kCorrupt}};
  if (codes.contains(how)) throw Error(codes.at(how), "rank 1: as asked");
  if (how == "damaged") throw DamagedState("rank 1: as asked");
  if (how == "exception") throw std::runtime_error("as asked");
  if (how == "object") throw 7;
  if (how == "abort") std::abort();
  if (how == "segv") std::raise(SIGSEGV);
  if (how == "kill") std::raise(SIGKILL);
  if (how == "progress") throw Error(ErrorCode::kInvalid, "rank 1: as asked");
  std::_Exit(std::atoi(how.c_str()));
}

// Ends like a program that still saves its last checkpoint long after the other ranks have ended.
[[noreturn]] void end_late(paceline::ProcessGroup& group, const Error& error) {
  group.abort(error.what());
  std::this_thread::sleep_for(1s);
  std::fprintf(stderr, "error: %s\n", error.what());
  std::_Exit(paceline::exit_code_of(error));
}

}  // namespace

int main(int, char** argv) {
  const std::string how = argv[1];
  const auto group = paceline::init_process_group({});
  const int generation = std::atoi(std::getenv("TORCHELASTIC_RESTART_COUNT"));
  paceline::StepLog steps;
  steps.begin_at(0);
  group->barrier();
  if (how == "progress") steps.step(1, 0.001, 0);
  if (group->rank() == 0) {
    std::printf("generation %d\n", generation);
    std::fflush(stdout);
  }
  group->barrier();
  if (group->rank() == 1 && generation == 0) {
    if (how == "damaged-late") end_late(*group, DamagedState("rank 1: as asked"));
    if (how == "invalid-late") end_late(*group, Error(ErrorCode::kInvalid, "rank 1: as asked"));
    end_as(how);
  }
  group->barrier();
  return 0;
}
