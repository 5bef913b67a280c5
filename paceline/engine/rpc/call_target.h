#pragma once

// The method that a call invokes and how often it may be executed, and the numbers that name
// methods and objects. Thread safety: values.

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

// Whether a call that was not sent may be sent in the next session when the current one is lost. A
// call that depends on state of the session, such as a reference, must not (kThisSession): it ends
// as not executed.
enum class Scope : std::uint8_t { kAnySession, kThisSession };

// The method that a call invokes, and how it is called.
struct CallTarget {
  std::string_view method;  // must outlive the call: a literal
  std::uint64_t method_number = 0;
  Effect effect{};
  Scope scope = Scope::kAnySession;
  ObjectNumber object = 0;  // the object that the method belongs to; 0: none
  // False for the calls that hold or release objects: a handler may need such a hold before it
  // begins, so these calls must not wait for other calls, which may be waiting for the handler.
  bool needs_credit = true;
};

// The id that stands for a method's name on the wire: the lower half of XXH3-128.
std::uint64_t method_id(std::string_view name);

}  // namespace detail

}  // namespace paceline::rpc
