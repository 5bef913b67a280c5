#pragma once

// What every library's leaf asks about a call, and about an error's text. Thread safety: pure.

#include <chrono>
#include <cstddef>
#include <string_view>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"

namespace paceline {

// Of the call's `count` elements: the whole buffer, or one rank's block of it.
inline std::size_t bytes_of(const Collective& call) { return call.count * size_of(call.dtype); }

// Where rank's block begins in a buffer that holds one of each; null stays null.
template <class Byte>
Byte* block_of(Byte* data, const Collective& call, int rank) {
  return data == nullptr ? nullptr : data + static_cast<std::size_t>(rank) * bytes_of(call);
}

// What is left, at least 1 ms: libraries take 0 for "no limit".
std::chrono::milliseconds timeout_of(Deadline deadline);

// Libraries have one class of exceptions for all that happens to a connection; the text tells them
// apart: kTimeout, kPeerLost for one that ended, otherwise kSystem.
ErrorCode code_of_text(std::string_view text);

}  // namespace paceline
