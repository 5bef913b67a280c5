#pragma once

// The method that a call invokes, how often the call may be executed, and the numbers that name
// methods and objects. Thread safety: these types are plain values.

#include <cstdint>
#include <string_view>

namespace paceline::rpc {

// How often a call may be executed. The called method declares this.
enum class Effect : std::uint8_t {
  kAtMostOnce,  // never executed twice; a lost reply leaves the outcome unknown
  kRepeatable,  // may be executed again, like a read: retried until the deadline
  kOnce,        // executed once: the callee keeps the reply until the caller has it
};

// The number of an object, unique among the objects of its owner. The worker that creates the
// object chooses the number at random; it is never reused.
using ObjectNumber = std::uint64_t;

namespace detail {

// Whether a call that was not sent, or that is repeatable, may be sent in the next session when the
// current session is lost. A call that depends on state of the session, such as a reference, ends
// with its session (kThisSession).
enum class Scope : std::uint8_t { kAnySession, kThisSession };

// The target of a call: the method, the rules for its calls, and the object if there is one.
struct CallTarget {
  std::string_view method;  // must outlive the call, as a literal does
  std::uint64_t method_number = 0;
  Effect effect{};
  Scope scope = Scope::kAnySession;
  ObjectNumber object = 0;  // the object that the method belongs to; 0: none
  // Whether the call waits for credit (workers.h). False for calls that hold or release objects: a
  // handler may need a hold before it begins, and the calls ahead may be waiting for that handler.
  bool needs_credit = true;
};

// The id that stands for a method's name on the wire: the lower half of its XXH3-128 hash.
std::uint64_t method_id(std::string_view name);

}  // namespace detail

}  // namespace paceline::rpc
