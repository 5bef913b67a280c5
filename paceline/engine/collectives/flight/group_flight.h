#pragma once

// Writes a group's entries in this rank's flight recorder: collectives, messages, failures. Does
// nothing when the rank has no recorder.
//
// Thread safety: every method may be called from any thread.

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/telemetry/flight_recorder.h"

namespace paceline {

// Opens the recorder that PACELINE_FLIGHT_DIR requests; `paceline run` sets this variable, and
// users may set it. Null if the variable is unset or empty, and in a job of one rank. With
// PACELINE_FLIGHT_KEEP=1 the files stay after a clean end. If the directory cannot be written, the
// result is null, after one warning. `timeline` may be null.
std::shared_ptr<FlightRecorder> open_flight_recorder(
    const LaunchEnvironment& environment, const GetVariable& variable = process_environment(),
    std::shared_ptr<Timeline> timeline = nullptr);

// The text that ends a timeout error in `group`: "; by the records of this host, rank 3 never
// entered ...". Empty when `recorder` is null.
std::string verdict_of_records(const FlightRecorder* recorder, std::string_view group = {});

// Completes `error` before it leaves the library: adds the directory of the records and, to a
// timeout error that has no verdict yet, the verdict of the records.
Error with_flight_records(const FlightRecorder& recorder, const Error& error);

class GroupFlight {
 public:
  // `recorder` may be null; all groups of this rank share it.
  GroupFlight(std::shared_ptr<FlightRecorder> recorder, const std::string& name, std::uint64_t hash,
              int rank, int world_size, int generation);

  const std::shared_ptr<FlightRecorder>& recorder() const { return recorder_; }

  // Runs `body`, which makes the group; a failure is recorded.
  template <class Body>
  auto form(Body&& body) const {
    try {
      return body();
    } catch (const Error& error) {
      throw failed({}, error);
    }
  }

  // Records that an asynchronous collective was called.
  FlightTicket enter(const Collective& call) const;
  // Runs a collective. `ticket` comes from enter(), or is empty for a collective that was called
  // just now. The end of a collective that a device's library watches is recorded when its Work
  // completes.
  template <class Body>
  void run(const Collective& call, FlightTicket ticket, std::uint32_t sequence, Body&& body) const {
    ticket = start(call, ticket, sequence);
    try {
      body();
    } catch (const Error& error) {
      throw failed(ticket, error);
    }
    if (!recorder_) return;
    if (call.work != nullptr && call.work->is_watched()) {
      call.work->record_end(recorder_, ticket);
    } else {
      recorder_->finish(ticket, {});
    }
  }

  // Posts a message by calling `post`; the end is recorded when the message's Work completes.
  template <class Post>
  WorkPtr message(Op op, const PointToPointCall& call, bool asynchronous, Post&& post) const {
    const FlightTicket ticket = start(op, call, asynchronous);
    try {
      WorkPtr work = post();
      if (recorder_) work->record_end(recorder_, ticket);
      return work;
    } catch (const Error& error) {
      throw failed(ticket, error);
    }
  }

  void note_failure(const std::string& text) const;

 private:
  FlightTicket start(const Collective& call, FlightTicket ticket, std::uint32_t sequence) const;
  FlightTicket start(Op op, const PointToPointCall& call, bool asynchronous) const;
  // Records the failure; returns the error to throw.
  Error failed(FlightTicket ticket, const Error& error) const;
  FlightCall describe(const Collective& call, bool asynchronous) const;

  const std::shared_ptr<FlightRecorder> recorder_;
  std::uint64_t hash_ = 0;
  std::uint32_t group_ = 0;
};

}  // namespace paceline
