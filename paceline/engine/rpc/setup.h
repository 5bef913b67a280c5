#pragma once

// The state that all parts of a worker share: its name, limits and keys (Setup), and the counters
// and spans in which other programs see its calls (CallStats).

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

// The times of one call at one end, by record_time(); 0 means not yet, or that neither gauge nor
// timeline is on.
struct CallMark {
  CallCounter counter{};
  std::uint64_t begun = 0, started = 0;
};

// The identity of a call, for the timeline.
struct CallName {
  std::string_view method;
  std::string_view other;   // the worker at the other end
  std::string_view caller;  // the incarnation of the caller
  std::string_view callee;  // the callee's name
  std::uint64_t number = 0;
};

// Lets other programs see a worker's calls: counts and times in a gauge (telemetry/call_gauge.h),
// and spans on the timeline. If neither is on, each function costs one comparison.
//
// Thread safety: const methods are safe; each CallMark belongs to one call.
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
  // The handler of the call starts to run.
  static void start(CallMark& mark) {
    if (mark.begun == 0) return;
    Started(mark.started).store(record_time(), std::memory_order_relaxed);
    CallGauge::start(mark.counter);
  }
  // Returns when the handler started. Any thread may call this function.
  static std::uint64_t started(CallMark& mark) {
    return Started(mark.started).load(std::memory_order_relaxed);
  }
  // The call has ended. At the callee, the time counts from the start of the handler.
  void end(CallSide side, CallMark& mark, const CallName& call, bool failed) const {
    if (mark.begun == 0) return;
    const std::uint64_t begin = started(mark), now = record_time();
    if (side == CallSide::kCallee && begin == 0) CallGauge::start(mark.counter);  // a refused call
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

// All parts of a worker share one Setup.

struct Setup {
  WorkerEntry self;
  Secret key;  // the job's key for calls
  std::shared_ptr<Directory> directory;
  std::size_t max_message = 0;
  std::size_t max_calls = 0;  // calls under way from one worker to another
  std::size_t max_bytes = 0;  // bytes of their requests
  LeaseTime lease = kDefaultLease;
  std::chrono::nanoseconds spin{};
  CallStats stats{};
};
using SetupPointer = std::shared_ptr<const Setup>;

// The longest message that a connection takes. Lists of calls always fit, however small the limit
// for the program's messages is.
std::size_t longest_frame(const Setup& setup);

// The time on CLOCK_BOOTTIME, which continues while the machine sleeps.
LeaseTime boot_time();

inline constexpr std::chrono::milliseconds kLookUpPause(50);  // between look-ups of an unknown name

// The context of a handshake (authentication.h): a text that names this incarnation of `callee`.
std::string connection_context(const WorkerEntry& callee, bool is_encrypted);
// Whether a connection is encrypted. Connections within a host never are, because the workers of a
// host trust its kernel.
bool is_encrypted(const WorkerEntry& callee, const WorkerEntry& caller);
// The cipher of encrypted calls, which every worker supports.
inline constexpr CipherKind kCallCipher = CipherKind::kChaCha20Poly1305;

// A connection to another host counts as broken once that host has not answered for this long.
inline constexpr std::chrono::seconds kSilence(5);
// Keeps the kernel's backlog of unsent bytes on a TCP connection small, so that urgent frames need
// not wait for it, and makes the kernel notice a host that has vanished.
void prepare_tcp(const Fd& socket);

}  // namespace paceline::rpc
