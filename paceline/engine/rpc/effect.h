#pragma once

// How often a method may be executed.

#include <cstdint>

namespace paceline::rpc {

// How often a method may be executed. The method declares it.
enum class Effect : std::uint8_t {
  kAtMostOnce,  // never executed twice; a lost reply leaves the outcome unknown
  kRepeatable,  // may be executed again, like a read: retried until the deadline
  kOnce,        // executed once: the callee keeps the reply until the caller has it
};

}  // namespace paceline::rpc
