#pragma once

// The ranks of one contestant, each a process of its own that lives through the whole session and
// sleeps while other contestants have their turns. They are started as `paceline run` starts ranks,
// or by their MPI's launcher.
//
//   RankSet set(entry, located, 2, plan, variables);
//   set.start();
//   set.open_store();
//   set.meet(deadline);
//   auto results = set.take_turn(turn, deadline);
//
// Call start() of every set first: open_store() starts a thread, and after that this process should
// not fork.
//
// The set keeps the ranks' stdout and stderr; if the ranks fail, the end of this output is part of
// the error message. The ranks end with their set, and with the thread that started them.
//
// Thread safety: none. Use it on the main thread, because the kernel ends the ranks with the thread
// that started them.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/ranks/job_services.h"

#include "apps/bench/catalog.h"
#include "apps/bench/messages.h"

namespace paceline::bench {

// A text that names the variables of the user's environment that change a measurement of Paceline:
// "with PACELINE_ENCRYPT=1; without PACELINE_BACKEND=gloo: ..."; empty if there are none. Most
// variables have their usual effect. Some are removed from the ranks' environment, because with
// them another library would be measured under Paceline's name, or Paceline would write files
// during the measurement. `set`: variables that an option sets; they replace inherited ones. The
// function is pure.
std::string variables_in_effect(const launcher::Environment& inherited,
                                const launcher::Environment& set);

class RankSet {
 public:
  // `variables` are added to the ranks' environment; `option` is passed to the ranks as
  // Setup::option. Error(kSystem) if a socket or file cannot be made.
  RankSet(const CatalogEntry& entry, Located located, int num_ranks,
          const launcher::Placement& plan, launcher::Environment variables,
          std::string option = "");
  ~RankSet();
  RankSet(const RankSet&) = delete;
  RankSet& operator=(const RankSet&) = delete;

  const std::string& name() const { return entry_.name; }
  const std::string& title() const { return entry_.title; }
  const std::string& option() const { return option_; }

  void start();
  void open_store() { services_.start_store(); }
  // Waits until every rank has initialised the library. If one cannot, throws an Error that
  // contains the ranks' output.
  void meet(Deadline deadline);
  // The library as the ranks have reported it. Requires: meet() has returned.
  const Ready& library() const { return ready_; }

  // Lets the ranks measure, and returns their results, by rank. Error if a rank fails or does not
  // answer in time; then the set can no longer be used.
  template <class AnyTurn>
  std::vector<typename AnyTurn::Result> take_turn(const AnyTurn& turn, Deadline deadline);
  // The sum of the times between this set's turns so far, in seconds, and the processor time that
  // all its ranks used in these times.
  double idle_seconds() const { return idle_seconds_; }
  double idle_cpu_seconds() const { return idle_cpu_seconds_; }

 private:
  void start_rank(int rank);
  void start_launcher();
  void start_process(launcher::ProcessSpec spec);
  void accept_ranks(Deadline deadline);
  using Answer = std::function<void(int rank, Conversation& conversation)>;
  void answer_each(Deadline deadline, const Answer& receive);
  bool any_ended() const;
  void stop();
  [[noreturn]] void fail_with(const Error& error);
  std::string output() const;

  const CatalogEntry& entry_;
  const Located located_;
  const int num_ranks_;
  const launcher::Placement& plan_;
  const launcher::Environment variables_;
  const std::string option_;
  launcher::LaunchOptions options_;
  launcher::JobServices services_;
  PrivateListener listener_;
  Fd start_line_;
  Fd output_;  // the output of all ranks
  Fd null_;
  std::vector<launcher::Process> processes_;
  std::vector<std::unique_ptr<Conversation>> ranks_;
  Ready ready_;
  double idle_seconds_ = 0, idle_cpu_seconds_ = 0;
};

}  // namespace paceline::bench
