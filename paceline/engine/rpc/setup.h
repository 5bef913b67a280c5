#pragma once

// What all parts of a worker share: its name, limits and keys (Setup), and the counters and spans
// that show its calls to others (CallStats).

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/timing.h"
#include "paceline/engine/rpc/directory.h"
#include "paceline/engine/rpc/protocol/session.h"
#include "paceline/engine/telemetry/call_gauge.h"
#include "paceline/engine/telemetry/timeline.h"
#include "paceline/engine/transport/cipher.h"

namespace paceline::rpc {

// The times of one call at one end, by record_time(); 0: not yet, or neither gauge nor timeline is
// on.
struct CallMark {
  CallCounter counter{};
  std::uint64_t begun = 0, started = 0;
};

// Which call it is, for the timeline.
struct CallName {
  std::string_view method;
  std::string_view other;   // the worker at the other end
  std::string_view caller;  // the incarnation of the caller
  std::string_view callee;  // the callee's name
  std::uint64_t number = 0;
};

// Shows a worker's calls to others: numbers and times in a gauge (telemetry/call_gauge.h), and
// spans of the timeline. If neither is on, a call costs a comparison.
//
// Thread safety: const methods; a mark belongs to its call.
class CallStats {
 public:
  CallStats() = default;  // neither gauge nor timeline
  CallStats(std::shared_ptr<CallGauge> gauge, std::shared_ptr<Timeline> timeline)
      : gauge_(std::move(gauge)), timeline_(std::move(timeline)) {}

  CallGauge* gauge() const { return gauge_.get(); }

  CallMark begin(CallSide side, std::uint64_t number, std::string_view method) const {
    if (!gauge_ && !timeline_) return {};
    CallMark mark{.begun = record_time()};
    if (gauge_) mark.counter = gauge_->counter(side, number, method);
    CallGauge::begin(mark.counter);
    return mark;
  }
  // Its handler runs.
  static void start(CallMark& mark) {
    if (mark.begun == 0) return;
    Started(mark.started).store(record_time(), std::memory_order_relaxed);
    CallGauge::start(mark.counter);
  }
  // Any thread may ask.
  static std::uint64_t started(CallMark& mark) {
    return Started(mark.started).load(std::memory_order_relaxed);
  }
  // The time of a handler counts from its start.
  void end(CallSide side, CallMark& mark, const CallName& call, bool failed) const {
    if (mark.begun == 0) return;
    const std::uint64_t begin = started(mark), now = record_time();
    if (side == CallSide::kCallee && begin == 0) CallGauge::start(mark.counter);  // it was refused
    const std::uint64_t since = begin != 0 ? begin : mark.begun;
    CallGauge::end(mark.counter, now > since ? now - since : 0, failed);
    if (timeline_) {
      timeline_->add(
          {.kind = side == CallSide::kCaller ? SpanKind::kCall : SpanKind::kHandler,
           .method = timeline_->name(call.method),
           .other = timeline_->name(call.other),
           .number = worker_hash(call.caller) * 3 + worker_hash(call.callee) + call.number,
           .failed = failed},
          {.begin = since, .end = std::max(now, since)});
    }
  }

 private:
  using Started = std::atomic_ref<std::uint64_t>;
  std::shared_ptr<CallGauge> gauge_;
  std::shared_ptr<Timeline> timeline_;
};

// Shared by all parts of a worker.

struct Setup {
  WorkerEntry self;
  Secret key;  // of the job, for calls
  std::shared_ptr<Directory> directory;
  std::size_t max_message = 0;
  std::size_t max_calls = 0;  // under way from one worker to another
  std::size_t max_bytes = 0;  // of their requests
  LeaseTime lease = kDefaultLease;
  std::chrono::nanoseconds spin{};
  CallStats stats{};
};
using SetupPointer = std::shared_ptr<const Setup>;

// The longest message that a connection takes: also lists of calls find room, however small the
// program's own messages are.
std::size_t longest_frame(const Setup& setup);

// CLOCK_BOOTTIME: it goes on while the machine sleeps.
LeaseTime boot_time();

inline constexpr std::chrono::milliseconds kNameless(50);  // between two looks for a name

// The context in which both ends prove the secret: calls at this incarnation of `callee`.
std::string connection_context(const WorkerEntry& callee, bool is_encrypted);
// Whether a connection is encrypted: the workers of a host trust its kernel.
bool is_encrypted(const WorkerEntry& callee, const WorkerEntry& caller);
// The one that every worker can do.
inline constexpr CipherKind kCallCipher = CipherKind::kChaCha20Poly1305;

// A worker on another host has been silent for so long: its connection is broken.
inline constexpr std::chrono::seconds kSilence(5);
// Keeps what the kernel has not sent yet of a TCP connection small, so that urgent frames do not
// wait behind it, and notices a host that is gone.
void prepare_tcp(const Fd& socket);

}  // namespace paceline::rpc
